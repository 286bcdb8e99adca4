"""What the stage does: export, check, measure without and with the drafter, compare, report.

Each phase leaves a file (plain.json, drafted.json) and is not repeated on resume; a stop ends the engine and the phase
under way. Imports pipeline.stage and this room; torch only through the export and where answers have to be judged.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from pipeline.config import DeployParams, TrainParams
from pipeline.deploy.acceptance import acceptance_of
from pipeline.deploy.agreement import NEAR_TIE, Agreement, compare
from pipeline.deploy.client import EngineClient, Measurement, Question
from pipeline.deploy.engine import Engine, EngineCommand, bundled_command, service_command
from pipeline.deploy.judge import VerifierJudge
from pipeline.deploy.lint import lint
from pipeline.deploy.questions import from_file, from_samples
from pipeline.deploy.service import check_service, takes_k
from pipeline.hostpath import host_path
from pipeline.rundir import Output, fingerprint, latest_checkpoint, read_json, write_json
from pipeline.stage import StageError, StageRun, Stopped

CONCURRENCY = 64
"""Requests in flight while measuring."""
PLAIN, DRAFTED = "plain", "drafted"


def deploy(stage: StageRun) -> None:
    """The body of stage deploy. Raises StageError, Stopped."""
    params = stage.params
    assert isinstance(params, DeployParams)
    stage.progress(0, None, "prompts", phase="loading", force=True)
    _Deployment(stage, params).run()


def questions_of(params: DeployParams, inputs: Mapping[str, Output], run: Path) -> list[Question]:
    """The prompts that a deploy of the run in that folder, with these parameters, measures on. Raises StageError."""
    if params.prompts:
        return from_file(host_path(params.prompts, run), params.samples)
    train = TrainParams(**inputs["train"].params())
    return from_samples(inputs["generate"].path / "samples.jsonl", train.val_fraction, params.samples)


class _Deployment:
    def __init__(self, stage: StageRun, params: DeployParams) -> None:
        self.stage, self.params = stage, params
        self.verifier = str(host_path(stage.plan.verifier.path, stage.run.path))
        self.questions = questions_of(params, stage.inputs, stage.run.path)
        self.done = 0
        if len(self.questions) < params.samples:
            where = (
                "the file of deploy.prompts has no more" if params.prompts else "no more were held out from training"
            )
            said = f"{len(self.questions)} prompts are measured, not {params.samples} (deploy.samples): {where}"
            stage.event("warning", said)
        self.takes_k = True
        if params.engine != "bundled":
            service = stage.plan.services[params.engine]
            check_service(params.engine, service)
            self.takes_k = takes_k(service)
            if not self.takes_k:
                said = f"deploy.k = {params.k} has no effect: the command of service {params.engine} has no {{k}}"
                stage.event("warning", said)

    def run(self) -> None:
        stage = self.stage
        started: dict[str, Engine] = {}
        with ExitStack() as stack:
            # The bundled engine is small: both load while this process exports, and one idles while the other is
            # measured.
            self._start_bundled(stack, started, PLAIN, None)
            folder, findings = self._exported()
            self._start_bundled(stack, started, DRAFTED, folder)
            for engine in started.values():
                self._await(engine)
            plain = self._phase(PLAIN, None, started)
            drafted = self._phase(DRAFTED, folder, started)
        stage.progress(self.total, self.total, "answers", phase="comparing")
        agreement = self._agreement(plain, drafted)
        found = acceptance_of(drafted)
        if found.length is None:
            stage.event("warning", f"acceptance is {found.source}")
        speed = {PLAIN: round(plain.tokens_per_s, 2), DRAFTED: round(drafted.tokens_per_s, 2)}
        counts: dict[str, float] = {
            "prompts": len(self.questions),
            "prompts_total": self.params.samples,
            "tokens": sum(len(answer.output_ids) for answer in drafted.answers),
        }
        if found.verifications is not None and found.accepted is not None:
            counts |= {"verifications": found.verifications, "accepted": found.accepted}
        k = self.params.k if self.takes_k else found.k
        stage.log(
            f"acceptance length {'unknown' if found.length is None else f'{found.length:.3f}'} (k = {k or 'unknown'}, "
            f"{len(self.questions)} prompts), tokens/s {speed[PLAIN]:.1f} plain, {speed[DRAFTED]:.1f} drafted"
        )
        stage.finish(
            counts,
            fingerprint({"acceptance_length": found.length, "counts": counts, "agreement": agreement}),
            acceptance_length=found.length,
            acceptance_from=found.source,
            rate_by_position=found.rates,
            greedy_agreement=agreement,
            tokens_per_s=speed,
            samples=len(self.questions),
            k=k,
            engine=self.params.engine,
            drafter=folder.name,
            lint=findings,
            trained_acceptance_length=(stage.inputs["train"].report() or {}).get("acceptance_length"),
        )

    @property
    def total(self) -> int:
        """Answers: each prompt is answered without the drafter and with it."""
        return 2 * len(self.questions)

    def _exported(self) -> tuple[Path, list[dict[str, str]]]:
        """The exported folder, checked by the linter; it is made once an output."""
        from pipeline.deploy.export import FOLDER, export_drafter, read_json_object, verifier_dtype

        stage = self.stage
        try:
            verifier = read_json_object(Path(self.verifier) / "config.json")
        except (OSError, ValueError) as error:
            raise StageError(f"The verifier's config.json can't be read: {error}", "Correct verifier.path") from None
        folder = stage.output / FOLDER
        if not folder.exists():
            trained = stage.inputs["train"].path
            checkpoint = latest_checkpoint(trained / "best")
            if checkpoint is None:
                raise StageError(f"{trained} holds no whole drafter", "`eagledeck restart RUN train` makes it anew")
            stage.check_space(2 * (checkpoint / "model.safetensors").stat().st_size)
            export_drafter(checkpoint, stage.output, verifier_dtype(verifier))
            stage.event("saved", f"drafter exported to {stage.output.name}/{FOLDER}")
        findings = lint(folder, verifier)
        for finding in findings:
            stage.event("warning" if finding.bad else "info", f"{finding.engine}: {finding.key} {finding.message}")
        refused = [finding for finding in findings if finding.bad]
        if refused:
            raise StageError(
                f"The exported drafter would not work in {refused[0].engine}: {refused[0].key} {refused[0].message}",
                f"Look at {folder}/config.json; the other findings are among the events",
            )
        return folder, [vars(finding) for finding in findings]

    def _start_bundled(self, stack: ExitStack, started: dict[str, Engine], name: str, drafter: Path | None) -> None:
        params = self.params
        if params.engine == "bundled" and not self._file(name).exists():
            command = bundled_command(self.verifier, params.dtype, params.threads, CONCURRENCY, drafter, params.k)
            started[name] = stack.enter_context(self._engine(name, command))

    def _engine(self, name: str, command: EngineCommand) -> Engine:
        self.stage.log(f"engine ({name}): {' '.join(command.argv)}")
        return Engine(command, self.stage.attempt.path / f"engine-{name}.log")

    def _phase(self, name: str, drafter: Path | None, started: dict[str, Engine]) -> Measurement:
        """A measurement, from its file where there is one."""
        kept = read_json(self._file(name))
        if kept is not None:
            self.done += len(kept["answers"])
            return Measurement.from_json(kept)
        engine = started.get(name)
        with ExitStack() as stack:
            if engine is None:
                engine = stack.enter_context(self._engine(name, self._service_command(drafter)))
                self._await(engine)
            found = self._measure(EngineClient(engine.url), name)
            engine.stop()
        if drafter is not None:
            acceptance_of(found)  # one that didn't draft is no measurement to keep
        write_json(self._file(name), found.to_json())
        self.done += len(found.answers)
        return found

    def _await(self, engine: Engine) -> None:
        self._progress(0, "loading")
        if not engine.wait_ready(self.stage.stopping):
            raise Stopped

    def _service_command(self, drafter: Path | None) -> EngineCommand:
        return service_command(self.stage.plan.services[self.params.engine], self.verifier, drafter, self.params.k)

    def _measure(self, client: EngineClient, name: str) -> Measurement:
        stage, params = self.stage, self.params
        self._progress(0, "warming up")
        warm = client.measure(self.questions[:2], 8, 2, lambda done: None, stage.stopping)

        def tell(done: int) -> None:
            self._progress(done, f"measuring {name}")

        found = warm and client.measure(self.questions, params.max_tokens, CONCURRENCY, tell, stage.stopping)
        if found is None:
            raise Stopped
        return found

    def _progress(self, done: int, phase: str) -> None:
        self.stage.progress(self.done + done, self.total, "answers", phase=phase)

    def _agreement(self, plain: Measurement, drafted: Measurement) -> dict[str, Any]:
        # A service's dtype isn't known here; bfloat16 is what they run in.
        dtype = self.params.dtype if self.params.engine == "bundled" else "bfloat16"
        judge = VerifierJudge(self.verifier, self.params.threads)
        found: Agreement = compare(plain.answers, drafted.answers, NEAR_TIE[dtype], judge)
        result = {**found.to_json(), "not_judged": judge.reason}
        if result["different"]:
            why = f"and could not be judged: {judge.reason}" if judge.reason else "and not by a near tie"
            message = f"{result['different']} of {found.prompts} answers differ with the drafter, {why}"
            self.stage.event("warning", message)
        return result

    def _file(self, name: str) -> Path:
        return self.stage.output / f"{name}.json"

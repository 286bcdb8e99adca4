"""What the generate stage does, from the plan to a complete output. Imports this folder, prompts and geometry."""

from __future__ import annotations

import asyncio
import os
import stat
from collections.abc import Coroutine
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar

from pipeline.config import GenerateParams
from pipeline.generate.answer import Answer
from pipeline.generate.asker import Asker, Verdicts
from pipeline.generate.dialect import Dialect, find_dialect
from pipeline.generate.endpoint import Endpoint, base_url
from pipeline.generate.endtoken import read_end_token
from pipeline.generate.failure import Failure, Kind
from pipeline.generate.loop import Generation, reached
from pipeline.generate.patience import Patience
from pipeline.generate.question import HELLO, Asking
from pipeline.generate.reasoning import expected, template_opens_reasoning
from pipeline.generate.retokenize import choose_tokenizer
from pipeline.generate.store import SampleStore
from pipeline.generate.unanswered import causes_of, unanswered
from pipeline.geometry import GeometryError, read_geometry
from pipeline.hostpath import host_path
from pipeline.prompts import PromptError, PromptIndex, index_prompts
from pipeline.stage import StageError, StageRun, Stopped

SERVICE_URL = "EAGLEDECK_SERVICE_URL"
"""Environment variable in which whoever started the services says where the first listens; each has its own besides,
with `_NAME` behind it."""
_SHOWN_LINES = 20
_T = TypeVar("_T")


def generate(stage: StageRun) -> None:
    """The body of the stage. Raises StageError and Stopped; what was answered is saved by then.

    Prompts that failed for the server's sake are asked twice. When the prompts are used up before the target is met,
    the output is completed all the same, with an event that counts those without a sample by cause; unless more than
    3 and more than 2 % of the prompts failed: that is a fault somebody has to look at, so the stage fails, resumable.
    """
    params = stage.params
    assert isinstance(params, GenerateParams)
    stage.progress(0, None, "samples", phase="loading")
    index = _read_prompts(stage, params)
    store = SampleStore(stage.output)
    try:
        if store.repaired:
            stage.event("info", f"{store.repaired} bytes of a half-written line were cut")
        if not reached(params, store.tally) and not all(store.done(one) for one in index.ids):
            asyncio.run(_generate(stage, params, index, store))
    finally:
        store.close()
    _finish(stage, index, store)


async def _generate(stage: StageRun, params: GenerateParams, index: PromptIndex, store: SampleStore) -> None:
    """Finds out how to ask, and asks."""
    endpoint = Endpoint(
        _address(stage, params), api_key=_api_key(params, stage.run.path), connections=params.concurrency
    )
    patience = Patience(endpoint, limit_s=params.timeout_s, retries=params.retries, say=stage.event)
    try:
        dialect, verdicts = await _unless_stopped(stage, store, patience, _prepare(stage, params, endpoint, patience))
        how = "streaming" if dialect.asking.stream else "each answer in one piece"
        stage.log(
            f"asking {dialect.asking.model} at {endpoint.shown}, {how}, {params.concurrency} at a time; {len(index)} "
            f"prompts, {store.tally.samples} samples so far; reasoning is {_WORDS[verdicts.reasoning]}"
        )
        await Generation(stage, index, store, Asker(endpoint, patience, dialect, verdicts)).run()
    except Failure as failure:
        raise await _explained(failure, endpoint, params.model) from None
    finally:
        await endpoint.close()


async def _unless_stopped(stage: StageRun, store: SampleStore, patience: Patience, work: Coroutine[Any, Any, _T]) -> _T:
    """The result of `work`, or Stopped as soon as a stop is asked for: a server that is away must not hold it up."""
    task = asyncio.ensure_future(work)
    try:
        while not task.done():
            if stage.stopping():
                raise Stopped
            tally = store.tally
            stage.progress(
                tally.samples,
                None,
                "samples",
                counts=store.counts(),
                bytes=tally.bytes,
                phase="waiting",
                note=patience.away,
            )
            await asyncio.wait({task}, timeout=0.2)
        return task.result()
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


async def _prepare(
    stage: StageRun, params: GenerateParams, endpoint: Endpoint, patience: Patience
) -> tuple[Dialect, Verdicts]:
    """Waits for the server, finds the model and the way to ask it, and what its answers must have."""
    model = _choose_model(await patience.until_up(), params.model, stage.plan.verifier.name, endpoint)
    asking = Asking(model, params.max_tokens, params.temperature, params.top_p, params.timeout_s)

    async def short(way: Asking) -> Answer:
        return await patience.ask(HELLO, way)

    dialect = await find_dialect(asking, short)
    path = stage.plan.verifier.path
    folder = host_path(path, stage.run.path) if path else None
    reasoning = expected(params.expect_reasoning, stage.plan.verifier.reasoning, folder)
    verdicts = Verdicts(reasoning, _vocab_size(folder))
    if not dialect.ids:
        tokenizer = await choose_tokenizer(endpoint, model, folder)
        opened = folder is not None and template_opens_reasoning(folder)
        verdicts = replace(verdicts, tokenizer=tokenizer, opened=opened, end=read_end_token(folder))
        stage.event("warning", f"{endpoint.shown} gives no token ids: they are made from the text and proven")
    return dialect, verdicts


def _choose_model(rows: list[dict[str, Any]], wanted: str, verifier: str, endpoint: Endpoint) -> str:
    """generate.model, else the only model there is, else the one named like the verifier. Raises StageError."""
    names = [str(row["id"]) for row in rows if row.get("id")]
    if wanted:
        # some servers take names that they don't list; one that doesn't is refused by the first question
        return wanted
    if len(names) == 1 or verifier in names:
        return verifier if verifier in names else names[0]
    raise StageError(
        f"The server at {endpoint.shown} lists {', '.join(names) or 'no model'}", "Set generate.model to one it serves"
    )


async def _explained(failure: Failure, endpoint: Endpoint, model: str) -> StageError:
    """The refusal of everything, as a sentence."""
    if failure.status in (401, 403):
        return StageError(
            f"The server at {endpoint.shown} refuses the key ({failure.detail})",
            "Put the key into a file of mode 0600 on the host and set generate.api_key_file to its path",
        )
    if failure.kind is Kind.FATAL:
        try:
            names = ", ".join(str(row.get("id")) for row in await endpoint.models())
        except Failure:
            names = ""
        if names:
            return StageError(
                f"The server at {endpoint.shown} does not serve {model or 'the model'} ({failure.detail})",
                f"It lists {names}: correct generate.model",
            )
        return StageError(
            f"{endpoint.shown} is no OpenAI-compatible server ({failure.detail})", "Correct generate.endpoint"
        )
    if failure.kind in (Kind.REFUSED, Kind.CONTEXT):
        return StageError(
            f"The server at {endpoint.shown} refuses even a short question ({failure.detail})",
            "Look at the server's log and the parameters of generate",
        )
    return StageError(
        f"The server at {endpoint.shown} does not give a whole answer to a short question ({failure.detail})",
        "Look at the server's log, or correct generate.endpoint, then resume",
    )


def _read_prompts(stage: StageRun, params: GenerateParams) -> PromptIndex:
    if not params.prompts:
        raise StageError("generate.prompts is empty", "Set it to a JSONL file on the host (`eagledeck put` sends one)")
    path = host_path(params.prompts, stage.run.path)
    try:
        index = index_prompts(path)
    except PromptError as error:
        raise StageError(error.message, error.remedy) from None
    stage.has_read("prompts", path, index.sha256)
    for what, lines in (("left out", index.bad), ("a duplicate, left out", index.duplicates)):
        for line in lines[:_SHOWN_LINES]:
            stage.event("warning", f"{path.name} line {line.line}: {what}: {line.cause}")
        if len(lines) > _SHOWN_LINES:
            stage.event("warning", f"{path.name}: {len(lines) - _SHOWN_LINES} more lines are {what}")
    summary = f"{path.name}: {len(index)} prompts, {len(index.bad)} broken lines, {len(index.duplicates)} duplicates"
    stage.event("info", summary)
    if params.max_samples > len(index):
        stage.event("info", f"there are fewer prompts ({len(index)}) than generate.max_samples ({params.max_samples})")
    return index


def _address(stage: StageRun, params: GenerateParams) -> str:
    """The server's base URL: generate.endpoint, else where the service listens. Raises StageError."""
    service = stage.plan.services.get(params.service)
    own = "".join(char if char.isalnum() else "_" for char in params.service).upper()
    url = params.endpoint or os.environ.get(f"{SERVICE_URL}_{own}", "") or os.environ.get(SERVICE_URL, "")
    if not url and service is not None:
        url = f"http://127.0.0.1:{service.port}"
    if not url:
        raise StageError(
            "Neither generate.endpoint nor a service of the plan says which server answers",
            "Set generate.endpoint to its URL, such as http://127.0.0.1:8000/v1, or generate.service",
        )
    try:
        return base_url(url)
    except ValueError:
        raise StageError(
            f"{url!r} is no URL of a server", "Set generate.endpoint to one like http://host:8000/v1"
        ) from None


def _api_key(params: GenerateParams, run: Path) -> str:
    if not params.api_key_file:
        return ""
    path = host_path(params.api_key_file, run)
    try:
        if stat.S_IMODE(path.stat().st_mode) & 0o077:
            raise StageError(f"The key file {path} can be read by others", f"Run `chmod 600 {path}` on the host")
        return path.read_text("utf-8").strip()
    except (OSError, UnicodeDecodeError) as error:
        why = error.strerror if isinstance(error, OSError) else "it is no text"
        raise StageError(f"The key file {path} can't be read ({why})", "Correct generate.api_key_file") from None


def _vocab_size(folder: Path | None) -> int | None:
    try:
        return read_geometry(folder).vocab_size if folder is not None else None
    except GeometryError:
        # generate needs no verifier folder; extract, which does, says what is wrong with it
        return None


def _finish(stage: StageRun, index: PromptIndex, store: SampleStore) -> None:
    tally, counts, params = store.tally, store.counts(), stage.params
    assert isinstance(params, GenerateParams)
    rejects = {one: store.rejected[one] for one in index.ids if one in store.rejected}
    if not tally.samples or not reached(params, tally):
        said = unanswered(rejects, len(index), tally.samples)
        if said:
            stage.event("warning", said, prompts=len(index), **causes_of(rejects))
    stage.progress(tally.samples, tally.samples, "samples", counts=counts, bytes=tally.bytes, phase="saving")
    fingerprint = store.write_tokenized()
    prompts = {"sha256": index.sha256, "usable": len(index), "broken": len(index.bad)}
    prompts["duplicates"] = len(index.duplicates)
    stage.finish(counts, fingerprint, model=store.model, prompts=prompts)


_WORDS = {True: "expected", False: "not expected", None: "expected once a </think> shows up"}

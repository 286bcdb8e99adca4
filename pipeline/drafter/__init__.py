"""The EAGLE-3 drafter: its shape (`config`), rotary positions, model, and how one starts from a verifier's last layer.

Imports torch in every module but `config` and `vocabulary`; of ours only `pipeline.geometry`.
"""

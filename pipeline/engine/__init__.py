"""The bundled engine: a small OpenAI-compatible server over a transformers model, for the demo and the tests.

`python -m pipeline.engine --model DIR` serves it. Real deployments use vLLM or SGLang; answers, errors and metrics have
the shapes of vLLM's. Imports pipeline.verifier's modules nowhere: any Llama-like model folder works.
"""

"""vLLM's own nodes behind our proxy; not run by `make test`, as it needs a vLLM."""

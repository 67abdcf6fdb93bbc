"""Serving engines: what vLLM, SGLang, TGI and llama.cpp make of a card. Start at estimate.py."""

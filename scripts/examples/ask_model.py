"""Asks the server that OPENAI_BASE_URL names."""
import os
import urllib.request

with urllib.request.urlopen(os.environ["OPENAI_BASE_URL"] + "/models") as answer:
    print("answer", answer.read().decode(), flush=True)

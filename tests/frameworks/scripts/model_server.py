# SPDX-License-Identifier: Apache-2.0
"""A stand-in for `vllm serve` and `sglang.launch_server` without a model: the same command line, /health and one response.
Headless parts wait for the job's end."""
import argparse
import http.server
import json
import os
import signal

parser = argparse.ArgumentParser()
parser.add_argument("words", nargs="*")
for name in ("host", "port", "nnodes", "node-rank", "master-addr", "master-port", "dist-init-addr", "model-path"):
    parser.add_argument("--" + name)
parser.add_argument("--tensor-parallel-size", type=int, default=1)
parser.add_argument("--headless", action="store_true")
given = parser.parse_args()
if given.headless or given.node_rank != "0":
    signal.pause()


class Answers(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        words = {"model": given.model_path or given.words[-1], "nodes": given.nnodes, "ranks": "RANK" in os.environ,
                 "tensor_parallel": given.tensor_parallel_size}
        body = b"" if self.path == "/health" else json.dumps(words).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_):
        pass


print("serving", flush=True)
http.server.ThreadingHTTPServer((given.host, int(given.port)), Answers).serve_forever()

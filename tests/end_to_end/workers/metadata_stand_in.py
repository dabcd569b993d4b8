"""A stand-in for the metadata services of AWS, Google Cloud and Azure, for the tests of their notices.

    metadata_stand_in.py ANSWERS.json REQUESTS.log

Listens on 169.254.169.254, which the caller has added to an interface. ANSWERS.json maps paths to bodies; it is read for
each request. Each service insists on its own header, as the real ones do.
"""

import http.server
import json
import sys

TOKEN = "stand-in-token"


class StandIn(http.server.BaseHTTPRequestHandler):
    def answer(self, status, body=""):
        with open(sys.argv[2], "a") as log:
            log.write(f"{self.command} {self.path} {status}\n")
        self.send_response(status)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body.encode())

    def do_PUT(self):
        is_valid = self.path == "/latest/api/token" and self.headers["X-aws-ec2-metadata-token-ttl-seconds"]
        self.answer(200 if is_valid else 400, TOKEN if is_valid else "")

    def do_GET(self):
        if self.path.startswith("/latest/") and self.headers["X-aws-ec2-metadata-token"] != TOKEN:
            return self.answer(401)
        if self.path.startswith("/computeMetadata/") and self.headers["Metadata-Flavor"] != "Google":
            return self.answer(403)
        if self.path.startswith("/metadata/") and self.headers["Metadata"] != "true":
            return self.answer(400)
        with open(sys.argv[1]) as file:
            body = json.load(file).get(self.path)
        return self.answer(404 if body is None else 200, body or "")

    def log_message(self, *_):
        pass


http.server.HTTPServer(("169.254.169.254", 80), StandIn).serve_forever()

# SPDX-License-Identifier: Apache-2.0
"""Queries a health check service of NVRx (nvhcd.proto): gRPC over a Unix socket.

python3 -c TEXT PATH SECONDS prints a line of JSON, {"ok": bool, "reason": text}, or exits with the reason why the service
could not be queried. The messages are encoded here, so that only grpc itself is needed.
"""
import json
import sys

path, limit = sys.argv[1], float(sys.argv[2])
try:
    import grpc
except ImportError as error:
    sys.exit(f"{sys.executable} cannot import grpc: {error}; install grpcio (Debian: python3-grpcio) there")


def request_bytes(arguments):
    """Encodes HealthCheckRequest: repeated string args = 1."""
    return b"".join(b"\x0a" + bytes([len(text)]) + text for text in map(str.encode, arguments))


def varint(data, at):
    value = shift = 0
    while True:
        byte = data[at]
        value |= (byte & 0x7F) << shift
        at, shift = at + 1, shift + 7
        if byte < 0x80:
            return value, at


def fields_of(data):
    """Decodes HealthCheckResponse: success = 1, exit_code = 2, output = 3, error = 4."""
    fields, at = {}, 0
    while at < len(data):
        key, at = varint(data, at)
        value, at = varint(data, at)
        if key & 7 == 2:
            value, at = data[at:at + value], at + value
        fields[key >> 3] = value
    return fields


call = grpc.insecure_channel("unix:" + path).unary_unary(
    "/nvhcd.HealthCheckService/RunHealthCheck", request_serializer=request_bytes, response_deserializer=bytes)
try:
    response = fields_of(call(["--no-slurm"], timeout=limit))
except grpc.RpcError as error:
    sys.exit(f"{path}: {error.code().name}: {error.details()}")
except (IndexError, ValueError) as error:
    sys.exit(f"{path}: invalid response: {error}")
output = response.get(3, b"").decode(errors="replace")
reason = response.get(4, b"").decode(errors="replace")
failures = 0
try:
    report = json.loads(output)
    failures = int(report.get("fail_count") or 0)
except (ValueError, TypeError, AttributeError):
    pass
if not reason and failures:
    reason = f"{failures} failed: {' '.join(output.split())[:400]}"
code = response.get(2, 0)
if not reason and code:
    reason = f"its script exited with code {code} {' '.join(output.split())[:400]}".rstrip()
is_well = bool(response.get(1, 0)) and not failures and not code
print(json.dumps({"ok": is_well, "reason": reason or f"the service reports {'' if is_well else 'no '}success"}))

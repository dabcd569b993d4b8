// SPDX-License-Identifier: Apache-2.0
#include "tests/bench/store_protocols.h"

#include <cstdio>
#include <cstdlib>

namespace ivy::bench {
namespace {

std::size_t resp_end(std::string_view bytes, std::size_t from) {
  const std::size_t line = bytes.find("\r\n", from);
  if (line == std::string_view::npos) return 0;
  const long number = std::strtol(bytes.data() + from + 1, nullptr, 10);
  switch (bytes[from]) {
    case '-':
      fail("Redis says " + std::string(bytes.substr(from, line - from)));
    case '$': {
      const std::size_t end = line + 2 + (number < 0 ? 0 : static_cast<std::size_t>(number) + 2);
      return end <= bytes.size() ? end : 0;
    }
    case '*': {
      std::size_t end = line + 2;
      for (long i = 0; i < number && end != 0; ++i)
        end = end < bytes.size() ? resp_end(bytes, end) : 0;
      return end;
    }
    default:
      return line + 2;
  }
}

}  // namespace

void fail(const std::string& why) {
  std::fprintf(stderr, "store_load: %s\n", why.c_str());
  std::exit(1);
}

std::string frame(store::Op op, std::string_view payload) {
  std::string out;
  store::append_frame(out, {static_cast<std::uint8_t>(op), 1}, payload);
  return out;
}

std::string texts(std::initializer_list<std::string_view> parts) {
  std::string out;
  for (const std::string_view part : parts) store::put_text(out, part);
  return out;
}

std::string resp(std::initializer_list<std::string_view> parts) {
  std::string out = "*" + std::to_string(parts.size()) + "\r\n";
  for (const std::string_view part : parts) {
    out += "$" + std::to_string(part.size()) + "\r\n";
    out += part;
    out += "\r\n";
  }
  return out;
}

std::string torch_text(std::string_view text) {
  std::string out;
  store::put_u64(out, text.size());
  return out.append(text);
}

std::string torch_keys(TorchOp op, std::string_view key) {
  std::string out(1, static_cast<char>(op));
  store::put_u64(out, 1);
  return out + torch_text(key);
}

Request get(Protocol protocol, const std::string& key) {
  if (protocol == Protocol::kNative) return {frame(store::Op::kGet, texts({key})), Shape::kFrame};
  if (protocol == Protocol::kRedis) return {resp({"GET", key}), Shape::kResp};
  return {std::string(1, static_cast<char>(TorchOp::kGet)) + torch_text(key), Shape::kTorchBytes};
}

Request set(Protocol protocol, const std::string& key, const std::string& value) {
  if (protocol == Protocol::kNative)
    return {frame(store::Op::kSet, texts({key, value})), Shape::kFrame};
  if (protocol == Protocol::kRedis) return {resp({"SET", key, value}), Shape::kResp};
  return {std::string(1, static_cast<char>(TorchOp::kSet)) + torch_text(key) + torch_text(value) +
              torch_keys(TorchOp::kCheck, key),
          Shape::kByte};
}

std::uint64_t little(std::string_view bytes) {
  std::uint64_t value = 0;
  for (std::size_t i = bytes.size(); i-- > 0;)
    value = value << 8 | static_cast<unsigned char>(bytes[i]);
  return value;
}

std::size_t reply_end(Shape shape, std::string_view bytes) {
  std::size_t length = 0;
  switch (shape) {
    case Shape::kResp:
      return bytes.empty() ? 0 : resp_end(bytes, 0);
    case Shape::kByte:
      length = 1;
      break;
    case Shape::kNumber:
      length = 8;
      break;
    case Shape::kTorchBytes:
      length = bytes.size() < 8 ? 8 : 8 + little(bytes.substr(0, 8));
      break;
    case Shape::kFrame:
      length = bytes.size() < 4 ? 4 : 4 + little(bytes.substr(0, 4));
      if (bytes.size() > 4 && bytes[4] != 0) fail("the store answers with an error");
      if (length == 4) return 0;
      break;
  }
  return bytes.size() >= length && length > 0 ? length : 0;
}

}  // namespace ivy::bench

// SPDX-License-Identifier: Apache-2.0
// The bytes of the three protocols that store_load speaks: requests made once, replies recognized
// by their end. Thread: any.
#pragma once

#include <cstdint>
#include <initializer_list>
#include <string>
#include <string_view>

#include "rendezvous/engine/requests.h"

namespace ivy::bench {

// Says why on standard error, and ends the program.
[[noreturn]] void fail(const std::string& why);

enum class Protocol { kNative, kRedis, kTorch };

struct Peer {
  std::string name;
  Protocol protocol = Protocol::kNative;
  std::uint16_t port = 0;
  int pid = 0;
};

// How the end of a reply is recognized.
enum class Shape { kFrame, kResp, kTorchBytes, kNumber, kByte };

struct Request {
  std::string bytes;
  Shape shape = Shape::kFrame;
  std::size_t replies = 1;
};

// A native request with the number 1, and texts of its payload.
std::string frame(store::Op op, std::string_view payload);
std::string texts(std::initializer_list<std::string_view> parts);
std::string resp(std::initializer_list<std::string_view> parts);
// Dialect A, which Debian's torch speaks.
enum class TorchOp : char { kSet = 0, kGet = 2, kAdd = 3, kCheck = 4, kWait = 5 };
std::string torch_text(std::string_view text);
std::string torch_keys(TorchOp op, std::string_view key);

Request get(Protocol protocol, const std::string& key);
// torch answers no SET; a CHECK sent along says that it has been served.
Request set(Protocol protocol, const std::string& key, const std::string& value);

// Where the first reply ends; 0: it has not wholly come. An error of the server ends the program.
std::size_t reply_end(Shape shape, std::string_view bytes);
std::uint64_t little(std::string_view bytes);

}  // namespace ivy::bench

// SPDX-License-Identifier: Apache-2.0
#include "launcher/job/control/ctl_wire.h"

namespace ivy {
namespace {

constexpr std::size_t kLengthBytes = 4;

}  // namespace

std::string framed(const std::string& message) {
  std::string bytes;
  bytes.reserve(kLengthBytes + message.size());
  for (std::size_t i = 0; i < kLengthBytes; ++i)
    bytes.push_back(static_cast<char>((message.size() >> (8 * i)) & 0xff));
  return bytes + message;
}

std::string encode_ctl(const ctl::Request& request) {
  ctl::Request versioned = request;
  versioned.set_version(kCtlVersion);
  return framed(versioned.SerializeAsString());
}

std::string encode_ctl(const ctl::Reply& reply) {
  ctl::Reply versioned = reply;
  versioned.set_version(kCtlVersion);
  return framed(versioned.SerializeAsString());
}

Result<std::optional<std::string>> CtlDecoder::next() {
  const std::string_view bytes = std::string_view(buffer_).substr(consumed_);
  if (bytes.size() < kLengthBytes) return std::optional<std::string>();
  std::size_t length = 0;
  for (std::size_t i = 0; i < kLengthBytes; ++i)
    length |= static_cast<std::size_t>(static_cast<unsigned char>(bytes[i])) << (8 * i);
  if (length > max_bytes_)
    return Error{Code::kDataLoss, "a message of " + std::to_string(length) + " bytes, limit " +
                                      std::to_string(max_bytes_)};
  if (bytes.size() < kLengthBytes + length) return std::optional<std::string>();
  std::string message(bytes.substr(kLengthBytes, length));
  consumed_ += kLengthBytes + length;
  // At least half of the buffer is dropped, so each byte is moved once on average.
  if (consumed_ * 2 >= buffer_.size()) {
    buffer_.erase(0, consumed_);
    consumed_ = 0;
  }
  return std::optional<std::string>(std::move(message));
}

}  // namespace ivy

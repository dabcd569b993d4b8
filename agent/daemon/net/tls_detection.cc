// SPDX-License-Identifier: Apache-2.0
#include "agent/daemon/net/tls_detection.h"

#include <algorithm>
#include <array>

#include "agent/daemon/net/agent_log.h"

namespace ivy {
namespace {

constexpr char kHandshakeRecord = 0x16;
constexpr std::size_t kRecordHeaderBytes = 5;
constexpr unsigned kSupportedVersions = 43;
constexpr unsigned kTls13 = 0x0304;
constexpr std::size_t kShownBytes = 24;  // Bytes of garbage that the log shows.

// Reads numbers and parts off the front of a ClientHello. Once a read fails, all later ones fail.
class Reader {
 public:
  explicit Reader(std::string_view bytes) : rest_(bytes) {}

  unsigned number(std::size_t bytes) {
    unsigned value = 0;
    for (const char byte : take(bytes)) value = value << 8 | static_cast<unsigned char>(byte);
    return value;
  }
  std::string_view take(std::size_t bytes) {
    if (broken_ || bytes > rest_.size()) {
      broken_ = true;
      return {};
    }
    const std::string_view part = rest_.substr(0, bytes);
    rest_.remove_prefix(bytes);
    return part;
  }
  // Reads a part that is preceded by its length.
  std::string_view part(std::size_t length_bytes) { return take(number(length_bytes)); }
  bool done() const { return broken_ || rest_.empty(); }
  bool broken() const { return broken_; }

 private:
  std::string_view rest_;
  bool broken_ = false;
};

TlsDetection other(std::string what) { return {TlsDetection::Kind::kOther, 0, std::move(what)}; }

// The list of versions that the client supports; empty if it has none, as before TLS 1.3.
std::string_view supported_versions(std::string_view extensions) {
  Reader reader(extensions);
  while (!reader.done()) {
    const unsigned type = reader.number(2);
    const std::string_view body = reader.part(2);
    if (type == kSupportedVersions && !reader.broken()) return Reader(body).part(1);
  }
  return {};
}

TlsDetection parse_hello(std::string_view record) {
  Reader reader(record);
  if (reader.number(1) != 1) return other("TLS that does not start with a ClientHello");
  Reader hello(reader.part(3));
  if (reader.broken()) return other("a TLS ClientHello in several records, which no client needs");
  hello.take(2 + 32);  // The version as TLS 1.2 had it, and the random number.
  hello.part(1);       // The id of a session.
  hello.part(2);       // The cipher suites.
  hello.part(1);       // The compression methods.
  const std::string_view extensions = hello.part(2);
  if (hello.broken()) return other("a damaged TLS ClientHello");
  Reader versions(supported_versions(extensions));
  while (!versions.done())
    if (versions.number(2) == kTls13) return {TlsDetection::Kind::kTls13, 0, {}};
  return other("TLS older than 1.3");
}

TlsDetection name_protocol(std::string_view seen) {
  if (seen.starts_with("PRI *")) return other("plaintext HTTP/2: gRPC without TLS");
  if (seen.starts_with("SSH-")) return other("an SSH client");
  static constexpr std::array<std::string_view, 8> kMethods{"GET ",  "POST ", "PUT ",  "HEAD ",
                                                            "OPTIO", "DELET", "CONNE", "PATCH"};
  for (const std::string_view method : kMethods)
    if (seen.starts_with(method)) return other("an HTTP request without TLS");
  const std::string_view shown = seen.substr(0, std::min(seen.size(), kShownBytes));
  return other("not TLS: it starts with \"" + agent_log::escaped(shown) + "\"");
}

}  // namespace

TlsDetection detect_tls13(std::string_view seen) {
  if (seen.size() < kFirstLookBytes) return {TlsDetection::Kind::kIncomplete, kFirstLookBytes, {}};
  if (seen[0] != kHandshakeRecord || seen[1] != 3) return name_protocol(seen);
  const std::size_t length = Reader(seen.substr(3)).number(2);
  if (length == 0 || length > kMaxHelloBytes - kRecordHeaderBytes)
    return other("a TLS record of " + std::to_string(length) + " bytes, which TLS does not allow");
  if (seen.size() < kRecordHeaderBytes + length)
    return {TlsDetection::Kind::kIncomplete, kRecordHeaderBytes + length, {}};
  return parse_hello(seen.substr(kRecordHeaderBytes, length));
}

std::string describe_unfinished(std::string_view seen) {
  if (seen.empty()) return "silent";
  if (seen[0] == kHandshakeRecord)
    return "a TLS ClientHello that ends after " + std::to_string(seen.size()) + " bytes";
  const std::string_view shown = seen.substr(0, std::min(seen.size(), kShownBytes));
  return "not TLS: it sent only \"" + agent_log::escaped(shown) + "\"";
}

}  // namespace ivy

// SPDX-License-Identifier: Apache-2.0
#include "agent/daemon/net/agent_log.h"

#include <grpc/support/log.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <mutex>
#include <utility>

#include "agent/daemon/net/handshake_limiter.h"
#include "proto/contract/text.h"
#include "proto/os/clock.h"
#include "proto/os/files.h"

namespace ivy::agent_log {
namespace {

constexpr std::size_t kMaxLineBytes = 4096;

// Rate limits that show what happens without filling a disk: 40 lines in a row, and one per second
// in the long run.
constexpr double kBurst = 40;
constexpr double kPerSecond = 1;

struct Log {
  std::mutex mutex;
  bool journal = false;
  RateLimit rejections{kBurst, kPerSecond};
  RateLimit grpc{kBurst, kPerSecond};
  HandshakeLimiter* handshakes = nullptr;
};

// Returns the log of this process.
Log& the_log() {
  static Log* const log = new Log;  // Never destroyed: gRPC's threads may log until the exit.
  return *log;
}

// Returns true if standard error is the journal. systemd identifies the journal's socket in
// JOURNAL_STREAM; this compares it, because standard error may have been redirected since.
bool standard_error_is_journal() {
  const char* const stream = std::getenv("JOURNAL_STREAM");
  struct stat status {};
  unsigned long long device = 0;
  unsigned long long inode = 0;
  return stream != nullptr && std::sscanf(stream, "%llu:%llu", &device, &inode) == 2 &&
         fstat(STDERR_FILENO, &status) == 0 && status.st_dev == device && status.st_ino == inode;
}

// Writes once, so that lines of several threads and of our children do not mix. An error is
// ignored: a lost log must not end its program.
void put(const std::string& text) { write_all(STDERR_FILENO, text); }

std::string suspects() {
  Log& log = the_log();
  HandshakeLimiter* handshakes = nullptr;
  {
    const std::lock_guard lock(log.mutex);
    handshakes = log.handshakes;
  }
  return handshakes != nullptr ? handshakes->suspects() : "a connection";
}

// Returns true for a line that gRPC logs at each connection and that means nothing here: a launcher
// connects to an address, which our certificates need not contain, and checks the host's name
// itself.
bool is_meaningless(std::string_view message) {
  return message.starts_with("No match found for server name");
}

void from_grpc(gpr_log_func_args* args) {
  if (is_meaningless(args->message)) return;
  const std::string failure = handshake_failure(args->message);
  if (!failure.empty())
    return rejection("rejected " + suspects() + ": its TLS handshake failed: " + failure);
  const Level level = args->severity == GPR_LOG_SEVERITY_ERROR ? Level::kWarning : Level::kInfo;
  const char* const slash = std::strrchr(args->file, '/');
  log_line(level,
           "gRPC: " + std::string(args->message) + " (" +
               (slash != nullptr ? slash + 1 : args->file) + ":" + std::to_string(args->line) + ")",
           Cause::kGrpc);
}

const char* word(Level level) {
  switch (level) {
    case Level::kError:
      return "error: ";
    case Level::kWarning:
      return "warning: ";
    case Level::kNotice:
    case Level::kInfo:
      return "";
  }
  return "";
}

void log_count(const Log& log, std::uint64_t count, const char* of) {
  if (count == 0) return;
  put(line(Level::kWarning,
           std::to_string(count) + " more lines " + of +
               " were dropped because they arrived too fast for the log",
           log.journal));
}

}  // namespace

void start() {
  Log& log = the_log();
  const std::lock_guard lock(log.mutex);
  log.journal = standard_error_is_journal();
  log.rejections = RateLimit(kBurst, kPerSecond);
  log.grpc = RateLimit(kBurst, kPerSecond);
  gpr_set_log_function(from_grpc);
}

void log_line(Level level, std::string_view text, Cause cause) {
  Log& log = the_log();
  const std::lock_guard lock(log.mutex);
  const auto now_ms = static_cast<std::int64_t>(monotonic_ns() / 1'000'000);
  if (cause == Cause::kRejection && !log.rejections.admit(now_ms)) return;
  if (cause == Cause::kGrpc && !log.grpc.admit(now_ms)) return;
  put(line(level, text, log.journal));
}

void name_suspects(HandshakeLimiter* handshakes) {
  Log& log = the_log();
  const std::lock_guard lock(log.mutex);
  log.handshakes = handshakes;
}

void log_suppressed() {
  Log& log = the_log();
  const std::lock_guard lock(log.mutex);
  log_count(log, log.rejections.take_suppressed(), "about rejected connections");
  log_count(log, log.grpc.take_suppressed(), "from gRPC");
}

std::string escaped(std::string_view text) {
  std::string result;
  result.reserve(text.size());
  while (!text.empty()) {
    const std::size_t length = utf8_length(text);
    if (length != 0 && !is_control(text.substr(0, length))) {
      result += text.substr(0, length);
      text.remove_prefix(length);
      continue;
    }
    result += "\\x" + hexadecimal(text.substr(0, 1));
    text.remove_prefix(1);
  }
  return result;
}

std::string handshake_failure(std::string_view grpc_message) {
  if (!grpc_message.starts_with("Handshake failed with fatal error")) return {};
  // OpenSSL: "error:0A000065:SSL routines::no suitable key share".
  const std::size_t reason = grpc_message.rfind("::");
  std::string text(reason == std::string_view::npos ? grpc_message
                                                    : grpc_message.substr(reason + 2));
  while (!text.empty() && text.back() == '.') text.pop_back();
  return text;
}

std::string line(Level level, std::string_view text, bool journal) {
  std::string result = journal ? "<" + std::to_string(static_cast<int>(level)) + ">"
                               : std::string("ivy-agent: ") + word(level);
  result += escaped(text.substr(0, kMaxLineBytes));
  if (text.size() > kMaxLineBytes) result += " [cut]";
  return result + '\n';
}

bool RateLimit::admit(std::int64_t now_ms) {
  if (last_ms_ != 0)
    tokens_ =
        std::min(burst_, tokens_ + static_cast<double>(now_ms - last_ms_) * per_second_ / 1000.0);
  last_ms_ = now_ms;
  if (tokens_ < 1) {
    ++suppressed_;
    return false;
  }
  tokens_ -= 1;
  return true;
}

std::uint64_t RateLimit::take_suppressed() {
  const std::uint64_t count = suppressed_;
  suppressed_ = 0;
  return count;
}

}  // namespace ivy::agent_log

// SPDX-License-Identifier: Apache-2.0
// The log of a serving agent: one line per event on standard error. Under the journal a line starts
// with its priority ("<4>"), elsewhere with "ivy-agent: warning: ". Control characters are escaped,
// so that a peer cannot forge a line. Lines that unauthenticated peers can cause are rate-limited;
// the number of omitted lines is logged. Thread: any.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace ivy {
class HandshakeLimiter;
}

namespace ivy::agent_log {

// Numbered as syslog(3) does, for the journal.
enum class Level { kError = 3, kWarning = 4, kNotice = 5, kInfo = 6 };

// The cause of a line. Each cause has its own rate limit: a flood of rejected connections hides
// neither our own lines nor gRPC's.
enum class Cause {
  kOwn,        // Our own work, including audit lines: never dropped.
  kRejection,  // A rejected peer.
  kGrpc,       // Messages of gRPC itself.
};

// Reads JOURNAL_STREAM once, and redirects gRPC's lines: errors, and those that GRPC_VERBOSITY
// enables. Call first in main.
void start();

// Logs one line, given without its newline; it is cut at 4 KiB and marked as cut.
void log_line(Level level, std::string_view text, Cause cause = Cause::kOwn);
inline void info(std::string_view text) { log_line(Level::kInfo, text); }
inline void notice(std::string_view text) { log_line(Level::kNotice, text); }
inline void warning(std::string_view text) { log_line(Level::kWarning, text); }
inline void error(std::string_view text) { log_line(Level::kError, text); }
inline void rejection(std::string_view text) { log_line(Level::kWarning, text, Cause::kRejection); }

// Logs how many lines were dropped since the last time, if any. Call about once a second, or the
// count of a flood that has stopped stays unreported.
void log_suppressed();

// Sets the limiter whose suspects() are named when gRPC reports a failed handshake without its
// peer. If it is null, no peer is named.
void name_suspects(HandshakeLimiter* handshakes);

// Escapes control characters and invalid UTF-8 bytes as \xNN.
std::string escaped(std::string_view text);

// Extracts the reason, such as "no suitable key share", from gRPC's line about a failed handshake.
// Returns an empty text for other lines.
std::string handshake_failure(std::string_view grpc_message);

// Returns a line in the form in which it is written, with its newline.
std::string line(Level level, std::string_view text, bool journal);

// Allows at most `burst` lines in a row and `per_second` in the long run; counts the rest.
class RateLimit {
 public:
  RateLimit(double burst, double per_second) : burst_(burst), per_second_(per_second) {}
  // Returns false for a line that is to be suppressed.
  bool admit(std::int64_t now_ms);
  // Returns the number of suppressed lines since the last call.
  std::uint64_t take_suppressed();

 private:
  double burst_;
  double per_second_;
  double tokens_ = burst_;
  std::int64_t last_ms_ = 0;
  std::uint64_t suppressed_ = 0;
};

}  // namespace ivy::agent_log

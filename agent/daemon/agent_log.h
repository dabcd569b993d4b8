// What the agent says while it serves: one line each on standard error. Under the journal a line
// begins with its priority ("<4>"), elsewhere with "ivy-agent: warning: ". Control characters are
// escaped, so that a peer can never forge a line. What strangers can cause is limited in rate; what
// was left out is counted and said. Thread: any.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>

namespace ivy::agent_log {

// The priorities of syslog(3).
enum class Level { kError = 3, kWarning = 4, kNotice = 5, kInfo = 6 };

// The cause of a line. Each cause has a limit of its own: a flood of refused connections hides
// neither our own lines nor gRPC's.
enum class Cause {
  kOwn,      // Our own work, audit lines among it: never left out.
  kRefusal,  // A peer that was refused.
  kGrpc,     // gRPC's own lines.
};

// Reads JOURNAL_STREAM once, and takes over gRPC's lines: errors and what our environment asks for
// with GRPC_VERBOSITY. Call first in main.
void start();

// One line without its newline, at most 4 KiB; what is longer is cut and says so.
void say(Level level, std::string_view text, Cause cause = Cause::kOwn);
inline void info(std::string_view text) { say(Level::kInfo, text); }
inline void notice(std::string_view text) { say(Level::kNotice, text); }
inline void warning(std::string_view text) { say(Level::kWarning, text); }
inline void error(std::string_view text) { say(Level::kError, text); }
inline void refusal(std::string_view text) { say(Level::kWarning, text, Cause::kRefusal); }

// Says how many lines were left out since it was last said, if any. Call about once a second:
// without it a flood that stops would leave its count unsaid.
void say_left_out();

// gRPC says that a handshake failed, but not whose: `suspects` does. Null ends it.
void name_suspects(std::function<std::string()> suspects);

// The text with every control character and every byte that is no UTF-8 as \xNN.
std::string escaped(std::string_view text);

// "no suitable key share" from gRPC's line about a handshake that failed; empty for other lines.
std::string handshake_failure(std::string_view grpc_message);

// A line as it is written, with its newline.
std::string line(Level level, std::string_view text, bool journal);

// At most `burst` lines at once and `per_second` in the long run; counts what it refuses.
class RateLimit {
 public:
  RateLimit(double burst, double per_second) : burst_(burst), per_second_(per_second) {}
  bool admit(std::int64_t now_ms);
  // How many were refused since the last call.
  std::uint64_t take_left_out();

 private:
  double burst_;
  double per_second_;
  double tokens_ = burst_;
  std::int64_t last_ms_ = 0;
  std::uint64_t left_out_ = 0;
};

}  // namespace ivy::agent_log

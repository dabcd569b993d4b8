// SPDX-License-Identifier: Apache-2.0
// Parses the output of a far login shell before the relay starts: noise of its start-up files, then
// markers of ivyrun's remote command, then the relay's bytes. Pure: bytes in, events out. Thread:
// any.
//
//   noise \x01ivy:ready\n   bytes of the relay...
//   noise \x01ivy:need ARCH\n  \x01ivy:send BYTES\n ...  \x01ivy:ready\n   bytes of the relay...
//   noise \x01ivy:fail TEXT\n                    (also the relay's own first line)
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace ivy {

struct GreetingEvent {
  enum class Kind {
    kNeed,   // ivy-node is not there: send the install script for the architecture `text`.
    kSend,   // The install script wants the bundle from byte `text` on.
    kReady,  // The relay runs: send it its opening line.
    kBytes,
    kFail,  // It cannot continue; `text` has the reason. Final.
  };
  Kind kind;
  std::string text;
};

class RemoteGreeting {
 public:
  // kShell: a login shell speaks first. kRelay: there is no shell, the first byte is the relay's.
  enum class Speaker { kShell, kRelay };
  explicit RemoteGreeting(Speaker first) : speaker_(first) {}

  std::vector<GreetingEvent> feed(std::string_view bytes);
  // True when nothing but bytes of the relay can follow: feed() is no longer needed.
  bool is_past() const { return past_; }
  // The last bytes that were neither a marker nor the relay's, for messages.
  const std::string& noise() const { return noise_; }

  static constexpr std::size_t kNoiseKeptBytes = 4096;
  // A start-up file that prints more than this is taken for a flood.
  static constexpr std::size_t kNoiseMaxBytes = 1u << 20;
  // One marker with its text. A longer one is not ours.
  static constexpr std::size_t kMarkerMaxBytes = 4096;

 private:
  bool step(std::vector<GreetingEvent>& events);
  bool shell_step(std::vector<GreetingEvent>& events);
  bool relay_step(std::vector<GreetingEvent>& events);
  void keep_noise(std::size_t count);

  Speaker speaker_;
  bool past_ = false;
  std::string buffer_;
  std::string noise_;
  std::size_t noise_bytes_ = 0;
};

// The last line of a text that has anything printable in it; for "it said: ...".
std::string last_line(std::string_view text);

// Appends to what a program has said, of which the last 4 KiB are kept.
void append_tail(std::string& text, std::string_view more);

}  // namespace ivy

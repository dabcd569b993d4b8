// SPDX-License-Identifier: Apache-2.0
// Parses the output of a login shell before the relay starts: *noise* (output of its start-up
// files), then *markers*, which are lines of ivyrun's remote command and install script, then the
// relay's bytes. Pure: bytes in, events out. Not thread-safe.
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
    kNeed,   // The host lacks ivy-node: send the install script for the architecture `text`.
    kSend,   // The install script wants the bundle from byte `text` on.
    kReady,  // The relay runs: send its opening line.
    kBytes,  // `text` is from the relay.
    kFail,   // The host cannot continue; `text` is the reason. The last event.
    kFlood,  // There was too much noise; `text` is its last line. The last event.
  };
  Kind kind;
  std::string text;
};

class RemoteGreeting {
 public:
  // kShell: a login shell speaks first. kRelay: there is no shell, and the first byte is the
  // relay's.
  enum class Sender { kShell, kRelay };
  explicit RemoteGreeting(Sender first) : sender_(first) {}

  std::vector<GreetingEvent> feed(std::string_view bytes);
  // True if all further bytes are the relay's: feed() is no longer needed.
  bool is_handed_over() const { return is_handed_over_; }
  // Returns the last bytes that were neither a marker nor the relay's, for messages.
  const std::string& noise() const { return noise_; }

  // Bytes of noise that are kept.
  static constexpr std::size_t kNoiseKeptBytes = 4096;
  // A start-up file that prints more noise is treated as broken.
  static constexpr std::size_t kNoiseMaxBytes = 1u << 20;
  // A longer line is not a marker.
  static constexpr std::size_t kMarkerMaxBytes = 4096;

 private:
  // Each handles a part of the buffer. Returns true if the rest can be handled as well, without
  // more bytes.
  bool step(std::vector<GreetingEvent>& events);
  bool shell_step(std::vector<GreetingEvent>& events);
  bool relay_step(std::vector<GreetingEvent>& events);
  void keep_noise(std::size_t count);

  Sender sender_;
  bool is_handed_over_ = false;
  std::string buffer_;
  std::string noise_;
  std::size_t noise_bytes_ = 0;
};

// Returns the last line that contains anything printable, for "it said: ...".
std::string last_line(std::string_view text);

// Appends to the output of a program, of which the last 4 KiB are kept.
void append_tail(std::string& text, std::string_view more);

}  // namespace ivy

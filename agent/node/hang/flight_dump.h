// torch's flight recorder, from outside: asks a worker for a dump through the pipe that torch
// listens on, and reads the file that it writes. Before it writes torch gathers the stacks of its
// calls with their symbols, which can take seconds, and it says so on standard error. The dump is
// not parsed here. Thread: any.
#pragma once

#include <cstdint>
#include <string>

namespace ivy {

// The stems that a worker was given (TORCH_FR_DUMP_TEMP_FILE, TORCH_NCCL_DEBUG_INFO_PIPE_FILE).
class FlightDump {
 public:
  // How long to wait for a dump: torch looks at its pipe once per second.
  static constexpr std::uint64_t kPatienceNs = 2'500'000'000;

  FlightDump(std::string file_stem, std::string pipe_stem, std::uint32_t rank);

  // Looks for an earlier dump.
  void begin(std::uint64_t now_ns);
  // Asks for a dump if torch listens on the pipe.
  void ask(std::uint64_t now_ns);
  // Whether there is anything to wait for.
  bool has_dump_or_question() const { return was_asked_ || before_.exists; }
  bool was_asked() const { return was_asked_; }
  // Torch has been asked by another way since begin(): waits for the dump.
  void await_new(std::uint64_t now_ns);
  // True when there is nothing more to wait for.
  bool advance(std::uint64_t now_ns);
  // True: torch was asked and has written one since then.
  bool is_new() const { return was_asked_ && last_.exists && last_ != before_; }
  // Returns the whole dump, or nothing; `note` then says why, if a dump exists but cannot be read.
  std::string take(std::uint64_t limit_bytes, std::string& note) const;

 private:
  struct Version {
    bool exists = false;
    std::uint64_t size = 0;
    std::int64_t changed_ns = 0;
    bool operator==(const Version&) const = default;
  };
  Version look() const;

  std::string file_;
  std::string pipe_;
  Version before_;
  Version last_;
  std::uint64_t last_changed_ns_ = 0;
  std::uint64_t began_ns_ = 0;
  bool was_asked_ = false;
};

}  // namespace ivy

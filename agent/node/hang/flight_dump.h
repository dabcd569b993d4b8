// torch's flight recorder, from outside: asks a worker for a dump by the pipe that torch listens
// on, and reads the file that it writes. The bytes are not looked into here. Thread: any.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <string>

namespace ivy {

// The stems that a worker was given (TORCH_FR_DUMP_TEMP_FILE, TORCH_NCCL_DEBUG_INFO_PIPE_FILE).
class FlightDump {
 public:
  // A dump that has not come by then is not coming: torch looks at its pipe once per second.
  static constexpr std::uint64_t kPatienceNs = 2'500'000'000;

  FlightDump(std::string file_stem, std::string pipe_stem, std::uint32_t rank);

  // Asks, where somebody listens on the pipe. False: nobody does, and no earlier dump is there.
  bool begin(std::uint64_t now_ns, bool may_ask);
  // True when there is nothing more to wait for.
  bool advance(std::uint64_t now_ns);
  // The whole dump, or nothing: `note` says why, where there is one that cannot be had.
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

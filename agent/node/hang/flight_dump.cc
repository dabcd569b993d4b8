#include "agent/node/hang/flight_dump.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <utility>

#include "proto/os/descriptor.h"
#include "proto/os/files.h"

namespace ivy {
namespace {

// A dump is written without a pause; when it has not changed for this long it is complete.
constexpr std::uint64_t kSettledNs = 100'000'000;

}  // namespace

FlightDump::FlightDump(std::string file_stem, std::string pipe_stem, std::uint32_t rank)
    : file_(file_stem.empty() ? "" : std::move(file_stem) + std::to_string(rank)),
      pipe_(pipe_stem.empty() ? "" : std::move(pipe_stem) + std::to_string(rank) + ".pipe") {}

FlightDump::Version FlightDump::look() const {
  struct stat status {};
  if (file_.empty() || lstat(file_.c_str(), &status) != 0 || !S_ISREG(status.st_mode)) return {};
  return {true, static_cast<std::uint64_t>(status.st_size),
          status.st_mtim.tv_sec * 1'000'000'000LL + status.st_mtim.tv_nsec};
}

void FlightDump::begin(std::uint64_t now_ns) {
  began_ns_ = now_ns;
  last_changed_ns_ = now_ns;
  before_ = look();
  last_ = before_;
}

void FlightDump::ask(std::uint64_t now_ns) {
  // Without a reader the pipe cannot be opened, and with one a line of two bytes always fits.
  const Descriptor fd(
      pipe_.empty() ? -1 : open(pipe_.c_str(), O_WRONLY | O_NONBLOCK | O_CLOEXEC | O_NOFOLLOW));
  struct stat status {};
  if (!fd || fstat(fd.get(), &status) != 0 || !S_ISFIFO(status.st_mode)) return;
  was_asked_ = write(fd.get(), "1\n", 2) == 2;
  began_ns_ = now_ns;
}

void FlightDump::await_new(std::uint64_t now_ns) {
  was_asked_ = true;
  began_ns_ = now_ns;
}

bool FlightDump::advance(std::uint64_t now_ns) {
  const Version now = look();
  if (now != last_) last_changed_ns_ = now_ns;
  last_ = now;
  const bool is_settled = now_ns - last_changed_ns_ >= kSettledNs;
  if (!was_asked_) return is_settled;
  const bool is_new = now.exists && now.size > 0 && now != before_;
  return (is_new && is_settled) || now_ns - began_ns_ >= kPatienceNs;
}

std::string FlightDump::take(std::uint64_t limit_bytes, std::string& note) const {
  if (!last_.exists) {
    if (was_asked_) note = "torch was asked for its flight record and did not write it";
    return {};
  }
  if (last_.size > limit_bytes) {
    note = "its flight record was left out: it has " + std::to_string(last_.size) + " bytes, and " +
           std::to_string(limit_bytes) +
           " were left for it (TORCH_FR_BUFFER_SIZE makes it smaller)";
    return {};
  }
  const std::optional<std::string> bytes =
      read_file(file_, static_cast<std::size_t>(last_.size), O_NOFOLLOW | O_NONBLOCK);
  if (bytes && was_asked_ && last_ == before_) note = "its flight record is an earlier one";
  return bytes.value_or("");
}

}  // namespace ivy

#include "launcher/job/state_file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <cstdio>
#include <cstring>
#include <utility>

namespace ivy {
namespace {

// The first text, once the workers have begun.
constexpr std::chrono::seconds kFirstText{1};
constexpr std::chrono::seconds kPeriod{15};
constexpr std::chrono::milliseconds kStatePatience{500};
// A text of the largest job is smaller.
constexpr std::size_t kStateRoomBytes = 256u << 20;

}  // namespace

StateFile::StateFile(boost::asio::io_context& loop, std::string path)
    : path_(std::move(path)), writer_(kStateRoomBytes, [] {}), timer_(loop) {}

void StateFile::begin(Ask ask) {
  if (!is_wanted()) return;
  ask_ = std::move(ask);
  schedule(kFirstText);
}

void StateFile::write() {
  take_done();
  // A slow file system misses a turn.
  if (writer_.is_idle()) ask_([this](const std::string& text) { replace(text); });
  schedule(kPeriod);
}

void StateFile::schedule(std::chrono::seconds time) {
  timer_.expires_after(time);
  timer_.async_wait([this](const boost::system::error_code& error) {
    if (!error) write();
  });
}

// A reader of the file sees the whole of the old text or of the new one. The name changes on the
// writer's thread, behind what was written before: an opener is what runs there. What could not be
// written whole, on a full disk, does not take the name.
void StateFile::replace(std::string_view text) {
  const std::string fresh = path_ + "." + std::to_string(getpid());
  const FileWriter::File file = writer_.open([fresh] {
    const int fd =
        ::open(fresh.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_NOFOLLOW | O_CLOEXEC, 0644);
    return fd < 0 ? -errno : fd;
  });
  writer_.write(file, text);
  writer_.close(file);
  const FileWriter::File renamed = writer_.open([fresh, path = path_, bytes = text.size()] {
    struct stat written = {};
    if (stat(fresh.c_str(), &written) != 0) return -errno;
    if (static_cast<std::size_t>(written.st_size) != bytes) {
      unlink(fresh.c_str());
      return -ENOSPC;
    }
    if (std::rename(fresh.c_str(), path.c_str()) != 0) return -errno;
    return ::open("/dev/null", O_WRONLY | O_CLOEXEC);
  });
  writer_.close(renamed);
}

void StateFile::end(const std::string& text) {
  if (!is_wanted()) return;
  timer_.cancel();
  replace(text);
  writer_.wait_idle(kStatePatience);
}

void StateFile::take_done() {
  for (const FileWriter::Done& done : writer_.take_done())
    if (done.errno_value != 0 && errno_value_ == 0) errno_value_ = done.errno_value;
}

std::string StateFile::complaint() {
  take_done();
  return errno_value_ == 0 ? "" : "--metrics-file " + path_ + ": " + std::strerror(errno_value_);
}

}  // namespace ivy

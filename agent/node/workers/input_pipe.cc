// SPDX-License-Identifier: Apache-2.0
#include "agent/node/workers/input_pipe.h"

#include <fcntl.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>
#include <boost/system/error_code.hpp>
#include <cerrno>
#include <utility>

namespace ivy {

InputPipe::~InputPipe() { *alive_ = false; }

InputPipe::Bytes InputPipe::counted(std::string bytes) {
  const auto grant = [this, alive = alive_](const std::string* taken) {
    const std::size_t size = taken->size();
    delete taken;
    if (!*alive) return;
    session_.grant(size);
    owner_.input_granted();
  };
  return {new std::string(std::move(bytes)), grant};
}

void InputPipe::expect(const std::vector<std::uint32_t>& ranks) {
  is_expected_ = true;
  const std::deque<Bytes> early = std::exchange(early_, {});
  for (const std::uint32_t rank : ranks) {
    const auto reader = std::make_shared<Reader>(loop_);
    reader->waiting = early;
    readers_[rank] = reader;
  }
}

void InputPipe::open(std::uint32_t rank, Descriptor fd) {
  const auto found = readers_.find(rank);
  if (found == readers_.end() || found->second->is_open) return;
  const ReaderPointer reader = found->second;
  reader->pipe.assign(fd.release());
  reader->is_open = true;
  write_some(rank, reader);
}

void InputPipe::push(std::string bytes) {
  const Bytes shared = counted(std::move(bytes));
  if (!is_expected_) return early_.push_back(shared);
  // Iterates over a copy, because a reader that is closed in write_some() is removed from the map.
  for (const auto& [rank, reader] : std::map(readers_)) {
    reader->waiting.push_back(shared);
    if (reader->is_open) write_some(rank, reader);
  }
}

// Handles the end of the input. Opens a reading end of the pipe, which can show later how much was
// left unread.
void InputPipe::finish(std::uint32_t rank, const ReaderPointer& reader) {
  const std::string path = "/proc/self/fd/" + std::to_string(reader->pipe.native_handle());
  Finished& finished = finished_[rank];
  finished.given = reader->given;
  finished.pipe.reset(::open(path.c_str(), O_RDONLY | O_NONBLOCK | O_CLOEXEC));
  const std::deque<Bytes> dropped = std::exchange(reader->waiting, {});
  reader->is_open = false;
  readers_.erase(rank);
  boost::system::error_code ignored;
  reader->pipe.close(ignored);
}

std::uint64_t InputPipe::taken(std::uint32_t rank) const {
  std::uint64_t given = 0;
  int fd = -1;
  if (const auto open = readers_.find(rank); open != readers_.end() && open->second->is_open) {
    given = open->second->given;
    fd = open->second->pipe.native_handle();
  } else if (const auto done = finished_.find(rank); done != finished_.end()) {
    given = done->second.given;
    fd = done->second.pipe.get();
  }
  int left = 0;
  if (fd >= 0 && ioctl(fd, FIONREAD, &left) != 0) left = 0;
  return given - std::min<std::uint64_t>(given, static_cast<std::uint64_t>(left));
}

void InputPipe::close(std::uint32_t rank) {
  finished_.erase(rank);
  const auto found = readers_.find(rank);
  if (found == readers_.end()) return;
  const ReaderPointer reader = found->second;
  readers_.erase(found);
  reader->is_open = false;
  boost::system::error_code ignored;
  reader->pipe.close(ignored);
  // These unread bytes may be the last reference that keeps some bytes from being granted.
  const std::deque<Bytes> dropped = std::exchange(reader->waiting, {});
}

void InputPipe::close() {
  expect({});
  while (!readers_.empty()) close(readers_.begin()->first);
}

void InputPipe::wait(std::uint32_t rank, const ReaderPointer& reader) {
  if (std::exchange(reader->is_waiting, true)) return;
  reader->pipe.async_wait(boost::asio::posix::stream_descriptor::wait_write,
                          [this, rank, reader](const boost::system::error_code& error) {
                            reader->is_waiting = false;
                            if (!error && reader->is_open) write_some(rank, reader);
                          });
}

void InputPipe::write_some(std::uint32_t rank, const ReaderPointer& reader) {
  while (!reader->waiting.empty()) {
    const std::string& front = *reader->waiting.front();
    if (front.empty()) return finish(rank, reader);
    const ssize_t count =
        ::write(reader->pipe.native_handle(), front.data() + reader->written_bytes,
                front.size() - reader->written_bytes);
    if (count < 0 && errno == EINTR) continue;
    if (count < 0 && errno == EAGAIN) return wait(rank, reader);
    if (count < 0) return finish(rank, reader);  // The reader closed its end.
    reader->written_bytes += static_cast<std::size_t>(count);
    reader->given += static_cast<std::uint64_t>(count);
    if (reader->written_bytes < front.size()) return wait(rank, reader);
    reader->written_bytes = 0;
    reader->waiting.pop_front();
  }
}

}  // namespace ivy

// SPDX-License-Identifier: Apache-2.0
#include "agent/node/roles/fetch.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdint>
#include <cstring>
#include <optional>
#include <string>
#include <utility>

#include "agent/node/roles/fetch_search.h"
#include "proto/contract/exit_code.h"
#include "proto/os/clock.h"
#include "proto/os/descriptor.h"
#include "proto/os/files.h"
#include "proto/wire/fetch.pb.h"
#include "proto/wire/stage_codec.h"

namespace ivy {
namespace {

// zstd's fastest level: text shrinks to a third, and checkpoints hardly at any level.
constexpr int kLevel = 1;
// How often the search reports its progress, so that the launcher sees that it goes on.
constexpr std::int64_t kSearchReportNs = 1'000'000'000;

std::int64_t mtime_of(const struct stat& status) {
  return status.st_mtim.tv_sec * std::int64_t{1'000'000'000} + status.st_mtim.tv_nsec;
}

class Sender {
 public:
  // Returns false if the launcher is gone, or has sent an invalid message.
  bool run();

 private:
  bool read_order(FetchOrder& order);
  bool search(const FetchBegin& begin, FileSearch& found);
  bool send_file(const FileSearch::File& file);
  bool send_part(FetchPart part);
  bool send_problem(const std::string& path, const std::string& why);
  bool send(const FetchReply& reply);

  stage::MessageSplitter orders_;
  std::int64_t credit_ = 0;
};

bool Sender::read_order(FetchOrder& order) {
  for (;;) {
    const Result<std::optional<std::string>> message = orders_.next();
    if (!message.ok()) return false;
    if (*message) return order.ParseFromString(**message);
    std::string bytes(64u << 10, '\0');
    const ssize_t count = read(STDIN_FILENO, bytes.data(), bytes.size());
    if (count < 0 && errno == EINTR) continue;
    if (count <= 0) return false;
    orders_.feed(std::string_view(bytes).substr(0, static_cast<std::size_t>(count)));
  }
}

bool Sender::run() {
  FetchOrder order;
  if (!read_order(order) || !order.has_begin()) return false;
  const FetchBegin begin = order.begin();
  std::int64_t reported_ns = monotonic_ns();
  const FileSearch* search_so_far = nullptr;
  FileSearch found(begin.directory(), begin.max_files(), [&] {
    if (monotonic_ns() - reported_ns < kSearchReportNs) return;
    reported_ns = monotonic_ns();
    FetchReply reply;
    reply.mutable_found()->set_files(search_so_far->files().size());
    reply.mutable_found()->set_bytes(search_so_far->bytes());
    send(reply);
  });
  search_so_far = &found;
  if (!search(begin, found)) return false;
  for (const FileSearch::File& file : found.files())
    if (!send_file(file)) return false;
  FetchReply reply;
  reply.mutable_done();
  if (!send(reply)) return false;
  // The supervisor may not have read everything yet, and reads only a little after an exit.
  while (read_order(order)) {
  }
  return true;
}

bool Sender::search(const FetchBegin& begin, FileSearch& search) {
  FetchReply reply;
  FetchFound& found = *reply.mutable_found();
  for (int i = 0; i < begin.patterns_size(); ++i)
    if (!search.add(begin.patterns(i).pattern(), begin.patterns(i).target()))
      found.add_unmatched(static_cast<std::uint32_t>(i));
  found.set_files(search.files().size());
  found.set_bytes(search.bytes());
  found.set_too_many(search.is_too_many());
  found.set_is_final(true);
  for (const FileSearch::Problem& problem : search.problems())
    if (!send_problem(problem.path, problem.why)) return false;
  return send(reply);
}

// Sends nothing of a file that cannot be opened. A file that changes is given up, because a part of
// one state and a part of another are neither.
bool Sender::send_file(const FileSearch::File& file) {
  // Without O_NONBLOCK, a file that was replaced by a pipe would block here.
  const Descriptor fd(open(file.opened.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY));
  struct stat status {};
  if (!fd || fstat(fd.get(), &status) != 0)
    return send_problem(file.opened,
                        errno == ENOENT ? "vanished before it was read" : strerror(errno));
  if (!S_ISREG(status.st_mode)) return send_problem(file.opened, "was replaced while it was read");
  posix_fadvise(fd.get(), 0, 0, POSIX_FADV_SEQUENTIAL);
  const auto size = static_cast<std::uint64_t>(status.st_size);
  std::uint64_t sent = 0;
  std::string bytes(static_cast<std::size_t>(std::min<std::uint64_t>(size, stage::kBlockBytes)),
                    '\0');
  for (bool is_first = true; is_first || sent < size; is_first = false) {
    FetchPart part;
    const auto wanted =
        static_cast<std::size_t>(std::min<std::uint64_t>(size - sent, bytes.size()));
    std::size_t filled = 0;
    while (filled < wanted) {
      const ssize_t count = read(fd.get(), bytes.data() + filled, wanted - filled);
      if (count < 0 && errno == EINTR) continue;
      if (count < 0) return send_problem(file.opened, strerror(errno));
      if (count == 0) return send_problem(file.opened, "became shorter while it was read");
      filled += static_cast<std::size_t>(count);
    }
    sent += filled;
    if (is_first) {
      FetchFile& announced = *part.mutable_file();
      announced.set_target(file.target);
      announced.set_path(file.path);
      announced.set_size(size);
      announced.set_mode(status.st_mode & 0777);
      announced.set_mtime_ns(mtime_of(status));
    }
    if (sent == size) {
      struct stat now {};
      if (fstat(fd.get(), &now) != 0 || now.st_size != status.st_size ||
          mtime_of(now) != mtime_of(status))
        return send_problem(file.opened, "changed while it was read");
      part.set_last(true);
    }
    const std::string_view plain = std::string_view(bytes).substr(0, filled);
    std::string packed = stage::compressed(plain, kLevel);
    part.set_is_compressed(packed.size() < plain.size());
    part.set_size(static_cast<std::uint32_t>(plain.size()));
    part.set_bytes(part.is_compressed() ? std::move(packed) : std::string(plain));
    if (!send_part(std::move(part))) return false;
  }
  return true;
}

bool Sender::send_part(FetchPart part) {
  FetchOrder order;
  while (credit_ <= 0) {
    if (!read_order(order)) return false;
    if (order.has_credit()) credit_ += static_cast<std::int64_t>(order.credit().bytes());
  }
  FetchReply reply;
  *reply.mutable_part() = std::move(part);
  credit_ -= static_cast<std::int64_t>(reply.ByteSizeLong());
  return send(reply);
}

bool Sender::send_problem(const std::string& path, const std::string& why) {
  FetchReply reply;
  reply.mutable_problem()->set_path(path);
  reply.mutable_problem()->set_why(why);
  return send(reply);
}

bool Sender::send(const FetchReply& reply) {
  return write_all(STDOUT_FILENO, stage::framed(reply.SerializeAsString()));
}

}  // namespace

int run_fetch() { return Sender().run() ? 0 : kExitFailed; }

}  // namespace ivy

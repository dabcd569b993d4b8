#include "rendezvous/log/commit_thread.h"

#include <signal.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <string_view>
#include <system_error>
#include <utility>

#include "rendezvous/log/write_ahead_log.h"

namespace ivy::store {
namespace {

// Records are joined up to this size before they are written: one system call for many small ones,
// and no second copy of many large ones.
constexpr std::size_t kWriteBytes = 1u << 20;

Result<void> write_all(int fd, std::uint64_t offset, std::string_view bytes) {
  while (!bytes.empty()) {
    const ssize_t count = pwrite(fd, bytes.data(), bytes.size(), static_cast<off_t>(offset));
    if (count < 0 && errno == EINTR) continue;
    if (count < 0) return errno_error(Code::kUnavailable, "write", errno);
    offset += static_cast<std::uint64_t>(count);
    bytes.remove_prefix(static_cast<std::size_t>(count));
  }
  return {};
}

Result<void> write_records(const RecordsToWrite& work) {
  std::string bytes;
  std::uint64_t offset = work.offset;
  std::uint64_t sequence = work.first_sequence;
  for (const std::string& record : work.records) {
    append_record(bytes, sequence++, record);
    if (bytes.size() < kWriteBytes && &record != &work.records.back()) continue;
    IVY_CHECK(write_all(work.fd, offset, bytes));
    offset += bytes.size();
    bytes.clear();
  }
  return {};
}

// An error here is final: after a failed fdatasync the kernel has forgotten what it could not
// write, and a second one that succeeds would prove nothing.
Result<void> sync(int fd) {
  if (fdatasync(fd) == 0) return {};
  return errno_error(Code::kUnavailable, "sync", errno);
}

Result<void> replace(const CommitBatch& batch) {
  if (renameat(batch.directory_fd, batch.second_name.c_str(), batch.directory_fd,
               batch.log_name.c_str()) == 0) {
    return {};
  }
  return errno_error(Code::kUnavailable, "rename", errno);
}

void commit(CommitBatch& batch) {
  if (!batch.log.records.empty()) {
    Result<void> written = write_records(batch.log);
    if (written.ok()) written = sync(batch.log.fd);
    if (!written.ok()) batch.lost = written.error();
  }
  if (batch.lost || batch.second.fd < 0) return;
  Result<void> second = write_records(batch.second);
  if (second.ok() && batch.replaces_log) second = sync(batch.second.fd);
  if (second.ok() && batch.replaces_log) second = replace(batch);
  if (!second.ok()) {
    batch.second_lost = second.error();
  } else if (batch.replaces_log && fsync(batch.directory_fd) != 0) {
    // Which of the two files a crash would leave is not known.
    batch.lost = errno_error(Code::kUnavailable, "sync the directory", errno);
  }
}

}  // namespace

Result<std::unique_ptr<CommitThread>> CommitThread::start() {
  Descriptor ready(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  if (!ready) return errno_error(Code::kInternal, "make an event descriptor", errno);
  std::unique_ptr<CommitThread> made(new CommitThread(std::move(ready)));
  // The loop's thread handles signals.
  sigset_t all;
  sigset_t before;
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, &before);
  std::optional<Error> failed;
  try {
    made->thread_ = std::thread([here = made.get()] { here->run(); });
  } catch (const std::system_error& error) {
    failed = Error{Code::kInternal, std::string("start a thread: ") + error.what()};
  }
  pthread_sigmask(SIG_SETMASK, &before, nullptr);
  if (failed) return *failed;
  return made;
}

CommitThread::~CommitThread() {
  {
    const std::lock_guard lock(mutex_);
    stopped_ = true;
  }
  changed_.notify_one();
  if (thread_.joinable()) thread_.join();
}

void CommitThread::submit(CommitBatch batch) {
  const std::lock_guard lock(mutex_);
  IVY_ASSERT(!submitted_ && !done_);
  submitted_ = std::move(batch);
  changed_.notify_one();
}

std::optional<CommitBatch> CommitThread::take() {
  std::uint64_t count = 0;
  if (read(ready_.get(), &count, sizeof count) < 0) return std::nullopt;
  const std::lock_guard lock(mutex_);
  return std::exchange(done_, std::nullopt);
}

void CommitThread::run() {
  std::unique_lock lock(mutex_);
  while (true) {
    changed_.wait(lock, [this] { return stopped_ || submitted_; });
    if (!submitted_) return;
    CommitBatch batch = std::move(*submitted_);
    submitted_.reset();
    lock.unlock();
    commit(batch);
    lock.lock();
    done_ = std::move(batch);
    const std::uint64_t one = 1;
    if (write(ready_.get(), &one, sizeof one) < 0) return;  // The eventfd cannot be full.
  }
}

}  // namespace ivy::store

// SPDX-License-Identifier: Apache-2.0
#include "proto/os/file_writer.h"

#include <signal.h>
#include <unistd.h>

#include <cerrno>
#include <condition_variable>
#include <cstdio>
#include <deque>
#include <map>
#include <mutex>
#include <string>
#include <system_error>
#include <utility>

#include "proto/os/files.h"

namespace ivy {
namespace {

// Small pieces for one file are joined up to this size, so that one system call writes many lines.
constexpr std::size_t kJoinedBytes = 1u << 20;

}  // namespace

struct FileWriter::Job {
  File file = 0;
  Step step = Step::kWrite;
  std::string bytes = {};
  Opener opener = {};
  // For close_and_rename(); empty: only close.
  std::string from = {};
  std::string to = {};
};

struct FileWriter::Queue {
  struct OpenFile {
    int fd = -1;
    int errno_value = 0;
  };

  void run();
  void work_off(std::unique_lock<std::mutex>& lock);
  int perform(Job& job);
  int close(const Job& job);

  std::mutex mutex;
  std::condition_variable changed;
  std::deque<Job> jobs;
  std::size_t bytes = 0;  // The bytes of all jobs, including the current one.
  bool is_working = false;
  bool is_ending = false;
  std::vector<Done> finished;
  std::function<void()> done;      // Empty after the writer was destroyed.
  std::map<File, OpenFile> files;  // Used only by the thread that performs jobs.
};

int FileWriter::Queue::perform(Job& job) {
  OpenFile& file = files[job.file];
  if (job.step == Step::kOpen) {
    file.fd = job.opener();
    if (file.fd < 0) file.errno_value = -file.fd;
  } else if (job.step == Step::kWrite) {
    if (file.errno_value == 0 && !write_all(file.fd, job.bytes, WhenFull::kWait))
      file.errno_value = errno;
  } else {
    return close(job);
  }
  return file.errno_value;
}

int FileWriter::Queue::close(const Job& job) {
  const OpenFile file = files[job.file];
  files.erase(job.file);
  if (file.fd < 0) return file.errno_value;
  int errno_value = file.errno_value;
  if (::close(file.fd) != 0 && errno != EINTR && errno_value == 0) errno_value = errno;
  if (job.from.empty()) return errno_value;
  if (errno_value == 0 && ::rename(job.from.c_str(), job.to.c_str()) != 0) errno_value = errno;
  if (errno_value != 0) ::unlink(job.from.c_str());
  return errno_value;
}

void FileWriter::Queue::work_off(std::unique_lock<std::mutex>& lock) {
  while (!jobs.empty()) {
    Job job = std::move(jobs.front());
    jobs.pop_front();
    is_working = true;
    lock.unlock();
    const int errno_value = perform(job);
    lock.lock();
    is_working = false;
    bytes -= job.bytes.size();
    finished.push_back({job.file, job.step, job.bytes.size(), errno_value});
    if (done) done();
  }
}

void FileWriter::Queue::run() {
  std::unique_lock<std::mutex> lock(mutex);
  for (;;) {
    work_off(lock);
    changed.notify_all();
    if (is_ending) return;
    changed.wait(lock, [this] { return is_ending || !jobs.empty(); });
  }
}

FileWriter::FileWriter(std::size_t max_queued_bytes, std::function<void()> done)
    : max_queued_bytes_(max_queued_bytes), queue_(std::make_shared<Queue>()) {
  queue_->done = std::move(done);
}

FileWriter::~FileWriter() {
  bool is_at_work = false;
  {
    const std::lock_guard<std::mutex> lock(queue_->mutex);
    is_at_work = queue_->is_working || !queue_->jobs.empty();
    queue_->done = nullptr;
    queue_->is_ending = true;
  }
  queue_->changed.notify_all();
  if (!thread_.joinable()) return;
  if (is_at_work)
    thread_.detach();
  else
    thread_.join();
}

void FileWriter::add(Job job) {
  std::unique_lock<std::mutex> lock(queue_->mutex);
  queue_->bytes += job.bytes.size();
  Job* const last = queue_->jobs.empty() ? nullptr : &queue_->jobs.back();
  if (last != nullptr && last->step == Step::kWrite && job.step == Step::kWrite &&
      last->file == job.file && last->bytes.size() + job.bytes.size() <= kJoinedBytes)
    last->bytes += job.bytes;
  else
    queue_->jobs.push_back(std::move(job));
  if (has_no_thread_) return queue_->work_off(lock);
  lock.unlock();
  queue_->changed.notify_all();
  if (thread_.joinable()) return;
  // Signals are for the user's thread.
  sigset_t all;
  sigset_t before;
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, &before);
  try {
    thread_ = std::thread([queue = queue_] { queue->run(); });
  } catch (const std::system_error&) {
    // The limit of processes was reached; writing slowly is better than not writing.
    has_no_thread_ = true;
  }
  pthread_sigmask(SIG_SETMASK, &before, nullptr);
  if (!has_no_thread_) return;
  lock.lock();
  queue_->work_off(lock);
}

FileWriter::File FileWriter::adopt(int descriptor) {
  return open([descriptor] { return descriptor; });
}

FileWriter::File FileWriter::open(Opener opener) {
  add(Job{.file = ++last_file_, .step = Step::kOpen, .opener = std::move(opener)});
  return last_file_;
}

void FileWriter::write(File file, std::string_view bytes) {
  if (!bytes.empty()) add(Job{.file = file, .bytes = std::string(bytes)});
}

void FileWriter::close(File file) { add(Job{.file = file, .step = Step::kClose}); }

void FileWriter::close_and_rename(File file, std::string from, std::string to) {
  add(Job{.file = file, .step = Step::kClose, .from = std::move(from), .to = std::move(to)});
}

bool FileWriter::has_room() const { return queued_bytes() < max_queued_bytes_; }

std::size_t FileWriter::queued_bytes() const {
  const std::lock_guard<std::mutex> lock(queue_->mutex);
  return queue_->bytes;
}

bool FileWriter::is_idle() const { return wait_idle(std::chrono::nanoseconds(0)); }

bool FileWriter::wait_idle(std::chrono::nanoseconds longest) const {
  std::unique_lock<std::mutex> lock(queue_->mutex);
  return queue_->changed.wait_for(lock, longest,
                                  [this] { return queue_->jobs.empty() && !queue_->is_working; });
}

std::vector<FileWriter::Done> FileWriter::take_done() {
  const std::lock_guard<std::mutex> lock(queue_->mutex);
  return std::exchange(queue_->finished, {});
}

}  // namespace ivy

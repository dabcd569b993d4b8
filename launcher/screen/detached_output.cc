#include "launcher/screen/detached_output.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <boost/asio/post.hpp>
#include <cerrno>
#include <filesystem>
#include <utility>

#include "proto/contract/remote_text.h"

namespace ivy {
namespace {

// Standard error kept per rank for the verdict.
constexpr std::size_t kTailBytes = 64u << 10;
// Messages before the workers start: a few lines per host at most.
constexpr std::size_t kMaxUnloggedBytes = 1u << 20;

}  // namespace

std::string launcher_log_path(const std::string& log_dir) { return log_dir + "/ivyrun.log"; }

std::function<void()> DetachedOutput::wake(void (DetachedOutput::*moved)()) {
  return [this, moved, &loop = loop_, alive = alive_] {
    boost::asio::post(loop, [this, moved, alive] {
      if (*alive) (this->*moved)();
    });
  };
}

DetachedOutput::DetachedOutput(boost::asio::io_context& loop, const Options& options,
                               std::string job_id, Handlers handlers,
                               std::unique_ptr<Output> foreground)
    : loop_(loop),
      options_(options),
      job_id_(std::move(job_id)),
      handlers_(std::move(handlers)),
      foreground_(std::move(foreground)),
      files_(wake(&DetachedOutput::files_moved)),
      log_writer_(kMaxUnloggedBytes, wake(&DetachedOutput::log_moved)),
      log_fd_(new int(-1),
              [](const int* fd) {
                if (*fd >= 0) ::close(*fd);
                delete fd;
              }),
      finish_timer_(loop) {}

DetachedOutput::~DetachedOutput() {
  *alive_ = false;
  if (log_ != 0) log_writer_.close(log_);
  log_writer_.wait_idle(LogFiles::kMomentToClose);
}

void DetachedOutput::begin(std::uint32_t generation, const std::vector<RankPlace>& places,
                           int /*max_attempts*/, Ready ready) {
  ranks_.clear();
  std::vector<int> ranks;
  for (const RankPlace& place : places) {
    ranks_[place.rank].host_index = place.host_index;
    ranks.push_back(place.rank);
  }
  Ready then = [this, ready = std::move(ready)](const Result<void>& opened) {
    if (!opened.ok() || log_ != 0) return ready(opened);
    open_log(ready);
  };
  if (options_.log_to == LogPlace::kNode) return then({});
  files_.open_all({options_.log_dir, job_id_, generation, ranks, appends_}, std::move(then));
}

void DetachedOutput::open_log(Ready ready) {
  log_opened_ = std::move(ready);
  const std::string path = launcher_log_path(options_.log_dir);
  log_ = log_writer_.open([folder = options_.log_dir, path, copy = log_fd_] {
    std::error_code error;
    std::filesystem::create_directories(folder, error);
    const int fd = log_opener(path, /*appends=*/true)();
    if (fd >= 0) *copy = fcntl(fd, F_DUPFD_CLOEXEC, 0);
    return fd;
  });
  // Jobs may share a folder: the log says whose lines follow.
  log_writer_.write(log_,
                    "ivyrun: job " + job_id_ + ", launcher pid " + std::to_string(getpid()) + "\n");
  log_writer_.write(log_, std::exchange(unlogged_, {}));
}

void DetachedOutput::log_moved() {
  take_log();
  check_finished();
}

void DetachedOutput::take_log() {
  const std::string path = launcher_log_path(options_.log_dir);
  for (const FileWriter::Done& done : log_writer_.take_done()) {
    if (done.step == FileWriter::Step::kOpen) {
      Result<void> opened;
      if (done.errno_value != 0) {
        Error error =
            errno_error(Code::kPermissionDenied, "--log-dir: open " + path, done.errno_value);
        error.fix = "choose a folder that you can write to: --log-dir DIR";
        opened = error;
      }
      std::exchange(log_opened_, nullptr)(opened);
    } else if (done.errno_value != 0 && log_complaint_.empty()) {
      log_complaint_ =
          errno_error(Code::kResourceExhausted, "write " + path, done.errno_value).message;
    }
  }
}

void DetachedOutput::files_moved() {
  files_.take_done();
  report_consumed();
  check_finished();
}

void DetachedOutput::leave(std::function<void(int)> left) {
  if (!foreground_) return left(*log_fd_);
  is_leaving_ = true;
  foreground_->finish([this, left = std::move(left)] {
    // It calls us from inside itself.
    std::shared_ptr<Output> shown = std::exchange(foreground_, nullptr);
    boost::asio::post(loop_, [shown] {});
    left(*log_fd_);
    check_finished();
  });
}

void DetachedOutput::worker_bytes(int rank, int stream, std::string_view bytes, bool end) {
  const auto found = ranks_.find(rank);
  if (found == ranks_.end()) return;
  RankRecord& record = found->second;
  std::uint64_t& left_out = record.left_out[stream == 2 ? 1 : 0];
  const std::size_t known = std::min<std::uint64_t>(left_out, bytes.size());
  left_out -= known;
  files_.write(rank, stream, bytes.substr(known));
  if (stream == 2) {
    record.tail.append(bytes);
    // Trimmed at twice its size, so that each byte is moved once at most.
    if (record.tail.size() >= 2 * kTailBytes) record.tail.erase(0, record.tail.size() - kTailBytes);
  }
  if (end) files_.close(rank, stream);
  consumed(record.host_index, bytes.size());
}

std::uint64_t DetachedOutput::continue_at(int rank, int stream, std::uint64_t bytes) {
  const auto found = ranks_.find(rank);
  if (found == ranks_.end() || files_.path(rank, stream).empty()) return 0;
  const std::uint64_t size = files_.size_at_open(rank, stream);
  found->second.left_out[stream == 2 ? 1 : 0] = size > bytes ? size - bytes : 0;
  return size < bytes ? bytes - size : 0;
}

void DetachedOutput::consumed(int host_index, std::uint64_t bytes) {
  if (bytes == 0) return;
  owed_[host_index] += bytes;
  if (std::exchange(report_scheduled_, true)) return;
  // Later, because granting may send, and sending may end in a call of ours.
  boost::asio::post(loop_, [this, alive = alive_] {
    if (*alive) report_consumed();
  });
}

void DetachedOutput::report_consumed() {
  report_scheduled_ = false;
  // Hosts wait for a file system as they wait for a reader: files_moved() comes back here.
  if (!files_.has_room()) return;
  const std::map<int, std::uint64_t> owed = std::exchange(owed_, {});
  for (const auto& [host, count] : owed) handlers_.consumed(host, count);
}

void DetachedOutput::say(std::string_view raw) {
  if (foreground_) foreground_->say(raw);
  // The log is read on terminals too.
  const std::string text = escape_control(raw);
  if (log_ != 0) {
    if (log_writer_.has_room())
      log_writer_.write(log_, text);
    else if (log_complaint_.empty())
      log_complaint_ = "write " + launcher_log_path(options_.log_dir) +
                       ": the file system does not answer, and lines are missing";
  } else if (unlogged_.size() < kMaxUnloggedBytes) {
    unlogged_ += text;
  }
}

void DetachedOutput::status_line(const std::string& text) {
  if (foreground_) foreground_->status_line(text);
}

std::string DetachedOutput::stderr_tail(int rank) const {
  const auto found = ranks_.find(rank);
  if (found == ranks_.end()) return "";
  const std::string& tail = found->second.tail;
  return tail.size() <= kTailBytes ? tail : tail.substr(tail.size() - kTailBytes);
}

void DetachedOutput::finish(std::function<void()> done) {
  done_ = std::move(done);
  is_finishing_ = true;
  if (finish_limit_) limit_finish(*finish_limit_);
  if (foreground_ && !is_leaving_) {
    // It can finish only once at a time.
    return foreground_->finish([this] {
      is_finishing_ = false;
      check_finished();
    });
  }
  is_finishing_ = false;
  boost::asio::post(loop_, [this, alive = alive_] {
    if (*alive) check_finished();
  });
}

void DetachedOutput::check_finished() {
  // Takes the last failures too, for complaints().
  files_.take_done();
  take_log();
  const bool is_shown = is_leaving_ ? !foreground_ : !is_finishing_;
  if (!done_ || !is_shown || !files_.is_idle() || !log_writer_.is_idle()) return;
  finish_timer_.cancel();
  // Later: the caller may destroy us.
  boost::asio::post(loop_, std::exchange(done_, nullptr));
}

void DetachedOutput::limit_finish(std::chrono::milliseconds limit) {
  finish_limit_ = limit;
  if (foreground_) foreground_->limit_finish(limit);
  if (!done_) return;
  finish_timer_.expires_after(limit);
  finish_timer_.async_wait([this, alive = alive_](const boost::system::error_code& error) {
    if (!error && *alive && done_) std::exchange(done_, nullptr)();
  });
}

std::vector<std::string> DetachedOutput::complaints() const {
  std::vector<std::string> all;
  if (!files_.complaint().empty()) all.push_back(files_.complaint());
  if (!log_complaint_.empty()) all.push_back(log_complaint_);
  return all;
}

}  // namespace ivy

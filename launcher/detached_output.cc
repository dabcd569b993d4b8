#include "launcher/detached_output.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <boost/asio/post.hpp>
#include <cerrno>
#include <filesystem>
#include <utility>

#include "proto/remote_text.h"

namespace ivy {
namespace {

// Standard error kept per rank for the verdict.
constexpr std::size_t kTailBytes = 64u << 10;
// Messages before the workers start: a few lines per host at most.
constexpr std::size_t kMaxUnloggedBytes = 1u << 20;

}  // namespace

std::string launcher_log_path(const std::string& log_dir) { return log_dir + "/ivyrun.log"; }

DetachedOutput::DetachedOutput(boost::asio::io_context& loop, const Options& options,
                               std::string job_id, Handlers handlers,
                               std::unique_ptr<Output> foreground)
    : loop_(loop),
      options_(options),
      job_id_(std::move(job_id)),
      handlers_(std::move(handlers)),
      foreground_(std::move(foreground)) {}

DetachedOutput::~DetachedOutput() {
  *alive_ = false;
  if (log_fd_ >= 0) ::close(log_fd_);
}

Result<void> DetachedOutput::begin(std::uint32_t generation, const std::vector<RankPlace>& places,
                                   int /*max_attempts*/) {
  ranks_.clear();
  std::vector<int> ranks;
  for (const RankPlace& place : places) {
    ranks_[place.rank].host_index = place.host_index;
    ranks.push_back(place.rank);
  }
  if (options_.log_to != LogPlace::kNode)
    IVY_CHECK(files_.open_all(options_.log_dir, job_id_, generation, ranks, appends_));
  return log_fd_ >= 0 ? Result<void>() : open_log();
}

Result<void> DetachedOutput::open_log() {
  std::error_code error;
  std::filesystem::create_directories(options_.log_dir, error);
  const std::string path = launcher_log_path(options_.log_dir);
  log_fd_ = open(path.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0666);
  if (log_fd_ < 0) {
    Error failed = errno_error(Code::kPermissionDenied, "--log-dir: open " + path, errno);
    failed.fix = "choose a folder that you can write to: --log-dir DIR";
    return failed;
  }
  // Jobs may share a folder: the log says whose lines follow.
  write_log("ivyrun: job " + job_id_ + ", launcher pid " + std::to_string(getpid()) + "\n");
  write_log(std::exchange(unlogged_, {}));
  return {};
}

void DetachedOutput::write_log(std::string_view text) {
  while (!text.empty() && log_complaint_.empty()) {
    const ssize_t count = ::write(log_fd_, text.data(), text.size());
    if (count >= 0) {
      text.remove_prefix(static_cast<std::size_t>(count));
    } else if (errno != EINTR) {
      log_complaint_ = errno_error(Code::kResourceExhausted,
                                   "write " + launcher_log_path(options_.log_dir), errno)
                           .message;
    }
  }
}

void DetachedOutput::leave(std::function<void(int)> left) {
  if (!foreground_) return left(log_fd_);
  is_leaving_ = true;
  foreground_->finish([this, left = std::move(left)] {
    // It calls us from inside itself.
    std::shared_ptr<Output> shown = std::exchange(foreground_, nullptr);
    boost::asio::post(loop_, [shown] {});
    left(log_fd_);
    if (done_) boost::asio::post(loop_, std::exchange(done_, nullptr));
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
  struct stat status {};
  const std::string path = files_.path(rank, stream);
  if (found == ranks_.end() || path.empty() || stat(path.c_str(), &status) != 0) return 0;
  const auto size = static_cast<std::uint64_t>(status.st_size);
  found->second.left_out[stream == 2 ? 1 : 0] = size > bytes ? size - bytes : 0;
  return size < bytes ? bytes - size : 0;
}

void DetachedOutput::consumed(int host_index, std::uint64_t bytes) {
  if (bytes == 0) return;
  owed_[host_index] += bytes;
  if (std::exchange(report_scheduled_, true)) return;
  // Later, because granting may send, and sending may end in a call of ours.
  boost::asio::post(loop_, [this, alive = alive_] {
    if (!*alive) return;
    report_scheduled_ = false;
    const std::map<int, std::uint64_t> owed = std::exchange(owed_, {});
    for (const auto& [host, count] : owed) handlers_.consumed(host, count);
  });
}

void DetachedOutput::say(std::string_view raw) {
  if (foreground_) foreground_->say(raw);
  // The log is read on terminals too.
  const std::string text = escape_control(raw);
  if (log_fd_ >= 0) {
    write_log(text);
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
  if (is_leaving_ && foreground_) {
    // It can finish only once.
    done_ = std::move(done);
    return;
  }
  if (foreground_) return foreground_->finish(std::move(done));
  boost::asio::post(loop_, std::move(done));
}

void DetachedOutput::limit_finish(std::chrono::milliseconds limit) {
  if (foreground_) foreground_->limit_finish(limit);
}

std::vector<std::string> DetachedOutput::complaints() const {
  std::vector<std::string> all;
  if (!files_.complaint().empty()) all.push_back(files_.complaint());
  if (!log_complaint_.empty()) all.push_back(log_complaint_);
  return all;
}

}  // namespace ivy

// SPDX-License-Identifier: Apache-2.0
// A byte's way is worker_bytes(): follower, files, tail of standard error, then its console
// (ConsoleStream::accept()). Its host gets credit for it through stream_consumed() and HostCredit.
// check_finished() is called after everything that may complete leave() or finish().
#include "launcher/screen/output.h"

#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <boost/asio/post.hpp>
#include <cerrno>
#include <set>
#include <utility>

#include "launcher/screen/terminal.h"

namespace ivy {
namespace {

// The tails of standard error for the verdict share kTailBudget; each is at least kMinTailBytes,
// so that a traceback fits.
constexpr std::size_t kTailBudget = 32u << 20;
constexpr std::size_t kMaxKeptTailBytes = 64u << 10;
constexpr std::size_t kMinTailBytes = 4u << 10;
// --console-overflow=drop: finish() waits at most this long for a reader that takes nothing.
constexpr std::chrono::milliseconds kDropFinishLimit{2000};

bool is_same_location(int first_fd, int second_fd) {
  struct stat first {
  }, second{};
  if (fstat(first_fd, &first) != 0 || fstat(second_fd, &second) != 0) return false;
  return first.st_dev == second.st_dev && first.st_ino == second.st_ino;
}

// True if no --redirects keeps this stream of the rank from the console.
bool has_console(const OutputOptions& options, const RankLocation& location, int stream) {
  const int redirected =
      options.redirects.of(location.local_rank) & ~options.tee.of(location.local_rank);
  return (redirected & stream) == 0;
}

template <class Streams>
bool are_idle(const Streams& streams) {
  return std::all_of(streams.begin(), streams.end(),
                     [](const auto& stream) { return !stream || stream->is_idle(); });
}

std::size_t index_of(int stream) { return stream == 2 ? 1 : 0; }

// Appends to the tail and keeps its last `max_bytes` bytes. The tail may grow by another quarter,
// so that its bytes are moved rarely.
void keep_tail(std::string& tail, std::string_view bytes, std::size_t max_bytes) {
  const std::size_t limit = max_bytes + max_bytes / 4;
  if (bytes.size() > max_bytes) bytes.remove_prefix(bytes.size() - max_bytes);
  if (tail.size() + bytes.size() > limit) tail.erase(0, tail.size() + bytes.size() - max_bytes);
  if (tail.size() + bytes.size() > limit / 4 && tail.capacity() < limit) tail.reserve(limit);
  tail.append(bytes);
}

}  // namespace

Output::Output(boost::asio::io_context& loop, const OutputOptions& options, std::string job_id,
               OutputTarget target, OutputEvents& owner, RemoteOutput* remote_output)
    : loop_(loop),
      options_(options),
      job_id_(std::move(job_id)),
      owner_(owner),
      remote_output_(remote_output),
      files_(*this),
      finish_timer_(loop) {
  if (options_.progress_match) progress_.emplace(*options_.progress_match);
  FileEvents& self = *this;
  if (target == OutputTarget::kBackground)
    log_ = std::make_unique<LauncherLog>(options_.log_dir, job_id_, self);
  else if (options_.overflow == OverflowChoice::kDrop)
    stall_limit_ = kDropFinishLimit;
  add_stream(0);
  if (!is_same_location(STDOUT_FILENO, STDERR_FILENO)) add_stream(1);
}

void Output::file_progressed() {
  boost::asio::post(loop_, [this, alive = alive_] {
    if (*alive) writers_progressed();
  });
}

void Output::add_stream(std::size_t index) {
  ConsoleStreamEvents& owner = *this;
  streams_[index] = std::make_unique<ConsoleStream>(
      loop_, index == 0 ? STDOUT_FILENO : STDERR_FILENO, options_, owner);
}

ConsoleStream* Output::stream_of(int stream) const {
  return (stream == 2 && streams_[1] ? streams_[1] : streams_[0]).get();
}

bool Output::is_shown(const RankLocation& location, int stream) const {
  return !log_ && !is_shown_remotely(location.host_index) &&
         has_console(options_, location, stream) &&
         options_.show_ranks.includes(location.rank, location.local_rank);
}

void Output::begin(std::uint32_t generation, const std::vector<RankLocation>& locations,
                   int max_attempts, Ready ready) {
  style_ = LabelStyle();
  LabelStyle& style = style_;
  style.choice = options_.label;
  style.job_id = job_id_;
  style.generation = generation;
  style.max_attempts = max_attempts;
  style.shown_ranks = 0;
  std::set<int> hosts;
  std::vector<RankLocation> kept;
  for (const RankLocation& location : locations) {
    style.max_rank = std::max(style.max_rank, location.rank);
    style.host_width = std::max(style.host_width, location.host.size());
    if (is_shown(location, 1) || is_shown(location, 2)) ++style.shown_ranks;
    hosts.insert(location.host_index);
    if (!is_shown_remotely(location.host_index)) kept.push_back(location);
  }
  style.hosts = hosts.size();
  if (options_.show_ranks.failed) style.shown_ranks = locations.size();
  const bool is_single =
      style.shown_ranks == 1 && make_label(style, LabelSubject{}, Colour::kOff).empty();
  for (const auto& stream : streams_)
    if (stream) stream->begin(is_single);
  ranks_.clear();
  if (progress_) progress_->begin();
  tail_bytes_ = std::clamp(kTailBudget / std::max<std::size_t>(1, locations.size()), kMinTailBytes,
                           kMaxKeptTailBytes);
  for (const RankLocation& location : locations) add_sources(location);
  if (log_) {
    ready = [this, ready = std::move(ready)](const Result<void>& opened) {
      if (!opened.ok() || log_->is_open()) return ready(opened);
      log_->open(ready);
    };
  }
  files_.open({options_, job_id_, generation, std::move(kept), appends_}, std::move(ready));
}

std::string Output::label_of(const RankLocation& location, int stream) const {
  const int fd = stream == 2 ? STDERR_FILENO : STDOUT_FILENO;
  const Colour colour = decide_colour(options_.color, isatty(fd) != 0, colour_variables());
  return make_label(
      style_, {location.rank, location.local_rank, location.host, stream, location.host_index},
      colour);
}

void Output::move_rank(const RankLocation& location) {
  const auto found = ranks_.find(location.rank);
  if (found == ranks_.end()) return;
  for (const int stream : {1, 2}) {
    OutputSource& source = found->second.sources[index_of(stream)];
    source.host_index = location.host_index;
    source.label = label_of(location, stream);
  }
}

void Output::add_sources(const RankLocation& location) {
  for (const int stream : {1, 2}) {
    RankRecord& record = ranks_[location.rank];
    record.waits_for_failure[index_of(stream)] =
        options_.show_ranks.failed && has_console(options_, location, stream);
    OutputSource& source = record.sources[index_of(stream)];
    source.rank = location.rank;
    source.stream = stream;
    source.host_index = location.host_index;
    source.is_shown = is_shown(location, stream);
    source.label = label_of(location, stream);
    if (ConsoleStream* console = stream_of(stream)) console->add(source);
  }
}

void Output::worker_bytes(int rank, int stream, std::string_view bytes, bool end) {
  if (follower_ != nullptr) follower_->output(rank, stream, bytes, end);
  const auto found = ranks_.find(rank);
  if (found == ranks_.end()) return;
  RankRecord& record = found->second;
  std::uint64_t& skipped = record.skipped[index_of(stream)];
  const std::size_t known = std::min<std::uint64_t>(skipped, bytes.size());
  skipped -= known;
  files_.write(rank, stream, bytes.substr(known));
  if (stream == 2) keep_tail(record.tail, bytes, tail_bytes_);
  if (progress_) progress_->feed(rank, stream, bytes, end);
  if (end) files_.close(rank, stream);
  OutputSource& source = record.sources[index_of(stream)];
  if (is_shown_remotely(source.host_index)) return remote_output_->show(source, bytes, end);
  if (!source.is_shown) {
    if (record.waits_for_failure[index_of(stream)]) record.memory.add(stream, bytes, end);
    return stream_consumed(source.host_index, bytes.size());
  }
  stream_of(stream)->accept(source, bytes, end);
}

// Grants in a later turn of the loop, once for all bytes of this one: granting may send, and
// sending may call the caller.
void Output::stream_consumed(int host_index, std::uint64_t bytes) {
  credit_.add(host_index, bytes);
  if (std::exchange(is_grant_posted_, true)) return;
  boost::asio::post(loop_, [this, alive = alive_] {
    if (*alive) grant_credit();
  });
}

void Output::grant_credit() {
  is_grant_posted_ = false;
  // While the file system of the log files is too slow, hosts have to wait for it.
  if (!files_.has_room()) return;
  for (const auto& [host_index, bytes] : credit_.take()) owner_.output_consumed(host_index, bytes);
}

void Output::show_failed(int rank) {
  const auto found = ranks_.find(rank);
  if (found == ranks_.end()) return;
  RankRecord& record = found->second;
  for (const int stream : {1, 2})
    if (std::exchange(record.waits_for_failure[index_of(stream)], false))
      record.sources[index_of(stream)].is_shown = true;
  for (const RankMemory::Piece& piece : record.memory.take()) {
    OutputSource& source = record.sources[index_of(piece.stream)];
    credit_.repeat(source.host_index, piece.bytes.size());
    stream_of(piece.stream)->accept(source, piece.bytes, false);
  }
  for (const int stream : {1, 2})
    if (record.memory.has_ended(stream))
      stream_of(stream)->accept(record.sources[index_of(stream)], {}, true);
}

std::uint64_t Output::continue_at(int rank, int stream, std::uint64_t bytes) {
  const auto found = ranks_.find(rank);
  const std::optional<std::uint64_t> size = files_.size_at_open(rank, stream);
  if (found == ranks_.end() || !size) return 0;
  found->second.skipped[index_of(stream)] = *size > bytes ? *size - bytes : 0;
  return *size < bytes ? bytes - *size : 0;
}

std::string Output::stderr_tail(int rank) const {
  const auto found = ranks_.find(rank);
  if (found == ranks_.end()) return "";
  const std::string& tail = found->second.tail;
  return tail.size() <= tail_bytes_ ? tail : tail.substr(tail.size() - tail_bytes_);
}

bool Output::was_just_printed(int rank) const {
  const auto found = ranks_.find(rank);
  const ConsoleStream* console = stream_of(2);
  return found != ranks_.end() && console != nullptr &&
         console->was_just_printed(found->second.sources[1]);
}

void Output::writers_progressed() {
  files_.take_done();
  // Hosts that waited for the file system may get credit now.
  grant_credit();
  check_finished();
}

void Output::check_reader() {
  if (ConsoleStream* const console = stream_of(1)) console->check_reader();
}

void Output::stream_failed(const ConsoleStream& stream, int errno_value) {
  const bool is_output = &stream == streams_[0].get();
  // In the background nothing is lost: the log and the files have everything.
  if (log_) return check_finished();
  if (errno_value == EPIPE || errno_value == ECONNRESET) {
    if (is_output && !std::exchange(is_closed_, true)) owner_.output_closed();
  } else {
    const std::string which = is_output ? "standard output" : "standard error";
    const std::string failure =
        errno_error(Code::kResourceExhausted, "write to " + which, errno_value).message +
        "; later output of the workers is lost";
    if (console_failure_.empty()) console_failure_ = failure;
    // A failure of standard output is printed on standard error now: the job may run for hours.
    // Else it waits for the summary.
    if (is_output && streams_[1]) {
      print("ivyrun: warning: " + failure + "\n");
    } else {
      output_errors_.push_back(failure);
    }
  }
  check_finished();
}

void Output::print(std::string_view text) {
  if (follower_ != nullptr) follower_->message(text);
  if (remote_output_ != nullptr) remote_output_->show_message(text);
  if (ConsoleStream* console = stream_of(2)) console->print(text);
  if (log_) log_->write(text);
}

bool Output::has_terminal() const { return stream_of(2) && is_capable_terminal(STDERR_FILENO); }

void Output::status_line(const std::string& text) {
  if (has_terminal()) stream_of(2)->set_status(text);
}

void Output::leave(std::function<void(int)> left) {
  left_ = std::move(left);
  check_finished();
}

void Output::leave_console() {
  if (!left_ || !are_idle(streams_)) return;
  streams_ = {};
  std::exchange(left_, nullptr)(log_->descriptor());
  check_finished();
}

void Output::finish(std::function<void()> done) {
  done_ = std::move(done);
  for (const auto& stream : streams_)
    if (stream) stream->end_sources();
  if (stall_limit_) watch_for_stall();
  boost::asio::post(loop_, [this, alive = alive_] {
    if (!*alive) return;
    for (const auto& stream : streams_)
      if (stream) stream->flush();
    check_finished();
  });
}

void Output::limit_finish(std::chrono::milliseconds limit) {
  stall_limit_ = limit;
  if (done_) watch_for_stall();
}

// Calls done when nothing was written for the whole limit; waits on while something moves.
void Output::watch_for_stall() {
  const std::uint64_t before = written();
  finish_timer_.expires_after(*stall_limit_);
  finish_timer_.async_wait([this, before, alive = alive_](const boost::system::error_code& error) {
    if (error || !*alive || !done_) return;
    if (written() != before) return watch_for_stall();
    std::exchange(done_, nullptr)();
  });
}

std::uint64_t Output::written() const {
  std::uint64_t sum = files_.written();
  for (const auto& stream : streams_)
    if (stream) sum += stream->written();
  return sum;
}

void Output::check_finished() {
  // Takes the results of the last writes, too, for output_errors().
  files_.take_done();
  if (log_) log_->take_done();
  if (!are_idle(streams_)) return;
  if (left_) {
    // In a later turn: the caller may be a stream, which leave_console() destroys.
    boost::asio::post(loop_, [this, alive = alive_] {
      if (*alive) leave_console();
    });
  } else if (done_ && files_.is_idle() && (!log_ || log_->is_idle())) {
    finish_timer_.cancel();
    // In a later turn: done may destroy this object while its caller still uses it.
    boost::asio::post(loop_, std::exchange(done_, nullptr));
  }
}

std::vector<std::string> Output::output_errors() const {
  std::vector<std::string> all = output_errors_;
  for (const std::string& write_error : files_.output_errors()) all.push_back(write_error);
  if (log_ && !log_->write_error().empty()) all.push_back(log_->write_error());
  for (const auto& [rank, record] : ranks_) {
    for (const OutputSource& source : record.sources) {
      if (source.cut_lines > 0)
        all.push_back(std::to_string(source.cut_lines) + " long lines of rank " +
                      std::to_string(rank) +
                      " were split on the console (log files have them unsplit)");
      if (source.dropped_lines == 0) continue;
      const std::string path = files_.path(rank, source.stream);
      all.push_back(std::to_string(source.dropped_lines) + " lines of rank " +
                    std::to_string(rank) + " not shown" +
                    (path.empty() ? "" : " (see " + path + ")"));
    }
  }
  return all;
}

}  // namespace ivy

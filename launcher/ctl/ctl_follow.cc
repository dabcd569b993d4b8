// SPDX-License-Identifier: Apache-2.0
// Follower runs a loop with two sources of output. If the job writes log files, it reads them as
// they grow (read_files()), and the connection to the launcher only announces attempts and the
// end. Without files, the output arrives over that connection (read_socket(), take_replies()). Both
// go to Output, the same code that ivyrun uses for the terminal. If the terminal is slow, reading
// pauses until output_consumed(). watch_launcher() detects a launcher that no longer answers.
#include "launcher/ctl/ctl_follow.h"

#include <unistd.h>

#include <algorithm>
#include <array>
#include <boost/asio/io_context.hpp>
#include <boost/asio/posix/stream_descriptor.hpp>
#include <boost/asio/post.hpp>
#include <boost/asio/signal_set.hpp>
#include <boost/asio/steady_timer.hpp>
#include <cerrno>
#include <chrono>
#include <csignal>

#include "launcher/ctl/ctl_options.h"
#include "launcher/ctl/log_reader.h"
#include "launcher/screen/output.h"
#include "proto/os/clock.h"

namespace ivy {
namespace {

using boost::asio::posix::stream_descriptor;

// Pause between two reads of growing files; too short to be noticed.
constexpr std::chrono::milliseconds kFileInterval{100};
// Limit of bytes that wait for the terminal.
constexpr std::size_t kMaxAheadBytes = 1u << 20;
// After an interrupt, output that cannot be shown within this time is dropped.
constexpr std::chrono::milliseconds kInterruptTimeout{100};
// A launcher that has sent nothing for kQuiet is probed. If it does not answer, that is reported
// after kFirstReport and then every kReports. After kSilenceLimit the launcher is considered hung:
// it does not manage its job either.
constexpr std::chrono::seconds kQuiet{1};
constexpr std::chrono::seconds kFirstReport{4};
constexpr std::chrono::seconds kReports{15};
constexpr std::chrono::seconds kSilenceLimit{60};

std::vector<RankLocation> locations_of(const ctl::JobDescription& job, const ShowRanks& wanted) {
  std::vector<RankLocation> locations;
  for (int host = 0; host < job.hosts_size(); ++host) {
    const ctl::HostPart& part = job.hosts(host);
    for (std::uint32_t local = 0; local < part.ranks(); ++local) {
      const int rank = static_cast<int>(part.first_rank() + local);
      if (wanted.includes(rank, static_cast<int>(local)))
        locations.push_back(RankLocation{rank, static_cast<int>(local), host, part.name()});
    }
  }
  return locations;
}

class Follower final : public OutputEvents {
 public:
  explicit Follower(FollowRequest request);
  Followed run();

 private:
  // OutputEvents
  void output_consumed(int host_index, std::uint64_t bytes) override;
  void output_closed() override { stop(FollowEnd::kOutputClosed); }

  bool has_files() const { return !request_.job.log_directory().empty(); }
  bool is_live() const { return socket_.is_open(); }
  void feed(int rank, int stream, std::string_view bytes, bool end = false);
  int max_attempts() const {
    return std::max<int>(1, static_cast<int>(request_.job.max_attempts()));
  }
  void read_files();
  void schedule_read();
  void wait_readable();
  void read_socket();
  void take_replies();
  void take(const ctl::Reply& reply);
  void show_gap(const ctl::Gap& gap);
  void show_attempt();
  void next_attempt(const ctl::JobDescription& job);
  void connection_ended(FollowEnd how);
  void finish_when_read();
  void stop(FollowEnd how);
  void watch_launcher();
  void probe_launcher();
  void check_silence();

  FollowRequest request_;
  boost::asio::io_context loop_{1};
  std::vector<RankLocation> locations_;
  stream_descriptor socket_{loop_};
  CtlDecoder decoder_{kMaxCtlReplyBytes};
  boost::asio::signal_set signals_{loop_, SIGINT, SIGTERM, SIGHUP};
  boost::asio::steady_timer file_timer_{loop_};
  boost::asio::steady_timer probe_timer_{loop_};
  stream_descriptor probe_{loop_};   // Open while an answer is expected.
  std::int64_t received_at_ns_ = 0;  // Time of the last data from the launcher.
  std::int64_t probed_at_ns_ = 0;    // Time of the last probe.
  std::int64_t reported_ns_ = 0;     // Duration of the silence at its last report; 0 if unreported.
  std::unique_ptr<Output> output_;
  std::optional<LogReader> files_;
  // The following attempt, until the files of the current one have been read to their end; later
  // messages of the launcher wait until then.
  std::optional<ctl::JobDescription> next_attempt_;
  std::size_t ahead_ = 0;  // Bytes passed to the output and not yet shown.
  bool is_blocked_ = false;
  bool waits_readable_ = false;
  bool is_over_ = false;      // No more data will arrive: show the rest.
  bool is_stopping_ = false;  // finish() was called: handle no more replies.
  Followed followed_;
};

Follower::Follower(FollowRequest request) : request_(std::move(request)) {
  OutputOptions options;
  options.label = request_.options->label;
  options.color = request_.options->color;
  output_ = std::make_unique<Output>(loop_, options, request_.job.job_id(), OutputTarget::kConsole,
                                     *this);
  signals_.async_wait([this](const boost::system::error_code& error, int) {
    if (!error) stop(FollowEnd::kInterrupted);
  });
  if (!request_.connection) return;
  decoder_ = std::move(request_.connection->decoder());
  socket_.assign(request_.connection->release());
}

void Follower::output_consumed(int, std::uint64_t bytes) {
  ahead_ -= std::min<std::size_t>(ahead_, bytes);
  if (!is_blocked_ || ahead_ > kMaxAheadBytes / 2) return;
  is_blocked_ = false;
  if (has_files()) read_files();
  take_replies();
}

void Follower::show_attempt() {
  locations_ = locations_of(request_.job, request_.options->ranks);
  // No files are created here, so this finishes immediately and cannot fail.
  output_->begin(request_.job.generation(), locations_, max_attempts(),
                 [](const Result<void>& opened) { IVY_ASSERT(opened.ok()); });
  if (!has_files()) return;
  std::vector<int> ranks;
  for (const RankLocation& location : locations_) ranks.push_back(location.rank);
  files_.emplace(request_.job.log_directory(), ranks);
}

Followed Follower::run() {
  show_attempt();
  is_over_ = !is_live();
  if (has_files()) {
    if (request_.last_lines) files_->skip_to_last(*request_.last_lines);
    boost::asio::post(loop_, [this] {
      read_files();
      schedule_read();
    });
  }
  boost::asio::post(loop_, [this] {
    take_replies();
    wait_readable();
  });
  received_at_ns_ = monotonic_ns();
  watch_launcher();
  loop_.run();
  return std::move(followed_);
}

void Follower::feed(int rank, int stream, std::string_view bytes, bool end) {
  const bool is_shown =
      std::any_of(locations_.begin(), locations_.end(),
                  [&](const RankLocation& location) { return location.rank == rank; });
  if (!is_shown) return;
  ahead_ += bytes.size();
  output_->worker_bytes(rank, stream, bytes, end);
}

void Follower::read_files() {
  if (is_stopping_ || is_blocked_) return;
  const bool read_all = files_->read(
      kMaxAheadBytes - std::min(ahead_, kMaxAheadBytes - 1),
      [this](int rank, int stream, std::string_view bytes) { feed(rank, stream, bytes); });
  is_blocked_ = !read_all;
  if (is_blocked_ && ahead_ == 0) {
    // No other operation is pending that could wake us.
    is_blocked_ = false;
    boost::asio::post(loop_, [this] { read_files(); });
  }
  if (!read_all) return;
  if (!next_attempt_) return finish_when_read();
  // An attempt without log files on this host is not shown.
  const bool keeps_files = !next_attempt_->log_directory().empty();
  if (keeps_files) request_.job = *next_attempt_;
  next_attempt_.reset();
  if (keeps_files) show_attempt();
  take_replies();
  read_files();
}

// Before the launcher announced this attempt, it had written all output of the previous one.
void Follower::next_attempt(const ctl::JobDescription& job) {
  if (job.generation() <= request_.job.generation()) return;
  if (has_files()) {
    next_attempt_ = job;
    files_->start_over();
    boost::asio::post(loop_, [this] { read_files(); });
    return;
  }
  // The output arrives through this connection.
  request_.job = job;
  request_.job.clear_log_directory();
  show_attempt();
}

void Follower::schedule_read() {
  file_timer_.expires_after(kFileInterval);
  file_timer_.async_wait([this](const boost::system::error_code& error) {
    if (error || is_stopping_) return;
    read_files();
    schedule_read();
  });
}

void Follower::wait_readable() {
  if (waits_readable_ || !is_live()) return;
  waits_readable_ = true;
  socket_.async_wait(stream_descriptor::wait_read, [this](const boost::system::error_code& error) {
    waits_readable_ = false;
    if (!error) read_socket();
  });
}

void Follower::read_socket() {
  // The launcher never waits for us; it counts the bytes that it cannot send.
  if (next_attempt_ || (is_blocked_ && !has_files())) return;
  std::array<char, 65536> buffer;
  const ssize_t count = ::read(socket_.native_handle(), buffer.data(), buffer.size());
  if (count == 0 || (count < 0 && errno != EAGAIN && errno != EINTR))
    return connection_ended(FollowEnd::kLauncherLost);
  if (count > 0) received_at_ns_ = monotonic_ns();
  if (count > 0) decoder_.feed(std::string_view(buffer.data(), static_cast<std::size_t>(count)));
  take_replies();
  wait_readable();
}

void Follower::take_replies() {
  while (is_live() && !is_stopping_ && !next_attempt_) {
    if (!has_files() && ahead_ > kMaxAheadBytes) {
      is_blocked_ = true;
      return;
    }
    const Result<std::optional<std::string>> message = decoder_.next();
    if (!message.ok()) return connection_ended(FollowEnd::kLauncherLost);
    if (!*message) break;
    const Result<ctl::Reply> reply = parse_reply(**message);
    if (reply.ok()) take(*reply);
  }
  wait_readable();
}

void Follower::take(const ctl::Reply& reply) {
  switch (reply.kind_case()) {
    case ctl::Reply::kOutput:
      return feed(static_cast<int>(reply.output().rank()),
                  static_cast<int>(reply.output().stream()), reply.output().bytes(),
                  reply.output().end());
    case ctl::Reply::kGap:
      return show_gap(reply.gap());
    case ctl::Reply::kMessage:
      if (request_.shows_messages) output_->print(reply.message().text());
      return;
    case ctl::Reply::kDescription:
      return next_attempt(reply.description());
    case ctl::Reply::kEnd:
      followed_.end = reply.end();
      return connection_ended(FollowEnd::kJobEnded);
    default:
      return;
  }
}

void Follower::show_gap(const ctl::Gap& gap) {
  if (gap.cut()) feed(static_cast<int>(gap.rank()), static_cast<int>(gap.stream()), "\n");
  output_->print("ivyctl: ... " + std::to_string(gap.lines()) + " lines of rank " +
                 std::to_string(gap.rank()) +
                 " not shown: they arrived faster than they were read\n");
}

void Follower::connection_ended(FollowEnd how) {
  followed_.how = how;
  is_over_ = true;
  boost::system::error_code ignored;
  socket_.close(ignored);
  // The launcher wrote the files before it announced its end.
  if (!has_files()) return finish_when_read();
  files_->start_over();
  read_files();
}

void Follower::watch_launcher() {
  if (!is_live()) return;
  probe_timer_.expires_after(kQuiet);
  probe_timer_.async_wait([this](const boost::system::error_code& error) {
    if (error || is_stopping_ || !is_live()) return;
    if (probe_.is_open())
      check_silence();
    else if (monotonic_ns() - received_at_ns_ >= std::chrono::nanoseconds(kQuiet).count())
      probe_launcher();
    watch_launcher();
  });
}

// Uses a separate connection, because the other one is silent while the ranks print nothing.
void Follower::probe_launcher() {
  ctl::Request request;
  request.mutable_describe();
  Result<CtlConnection> probe = CtlConnection::send_request(request_.directory, request);
  if (!probe.ok()) return;  // Its exit shows on the other connection.
  probed_at_ns_ = monotonic_ns();
  probe_.assign(probe->release());
  probe_.async_wait(stream_descriptor::wait_read, [this](const boost::system::error_code& error) {
    if (error) return;
    boost::system::error_code ignored;
    probe_.close(ignored);
    received_at_ns_ = monotonic_ns();
    if (std::exchange(reported_ns_, 0) != 0)
      output_->print("ivyctl: the job's ivyrun responds again\n");
  });
}

void Follower::check_silence() {
  const std::int64_t silent_ns = monotonic_ns() - probed_at_ns_;
  const auto seconds = std::to_string(silent_ns / 1'000'000'000);
  const std::string what = "the job's ivyrun (pid " + std::to_string(request_.job.pid()) +
                           ") has not responded for " + seconds + " s";
  if (silent_ns >= std::chrono::nanoseconds(kSilenceLimit).count()) {
    followed_.error = what;
    return connection_ended(FollowEnd::kNoAnswer);
  }
  const std::int64_t due_ns = reported_ns_ == 0
                                  ? std::chrono::nanoseconds(kFirstReport).count()
                                  : reported_ns_ + std::chrono::nanoseconds(kReports).count();
  if (silent_ns < due_ns) return;
  reported_ns_ = silent_ns;
  output_->print("ivyctl: " + what + "; is it stopped? (ps -o pid,stat,args -p " +
                 std::to_string(request_.job.pid()) + ")\n");
}

void Follower::finish_when_read() {
  if (is_over_) stop(followed_.how);
}

void Follower::stop(FollowEnd how) {
  if (std::exchange(is_stopping_, true)) {
    // A second Ctrl-C, or a reader that was closed in the meantime.
    output_->limit_finish(kInterruptTimeout);
    return;
  }
  followed_.how = how;
  if (files_ && how == FollowEnd::kShown && !files_->error().empty()) {
    followed_.how = FollowEnd::kNoFiles;
    followed_.error = files_->error();
  }
  file_timer_.cancel();
  probe_timer_.cancel();
  boost::system::error_code ignored;
  probe_.close(ignored);
  socket_.close(ignored);
  if (how == FollowEnd::kInterrupted || how == FollowEnd::kOutputClosed)
    output_->limit_finish(kInterruptTimeout);
  output_->finish([this] { loop_.stop(); });
}

}  // namespace

Result<FollowRequest> start_following(const CtlOptions& options, const LauncherDirectory& directory,
                                      bool shows_messages) {
  FollowRequest follow;
  follow.shows_messages = shows_messages;
  follow.options = &options;
  follow.directory = directory;
  follow.job = IVY_TRY(describe_job(directory));
  ctl::Request request;
  // Output that is in files need not be sent, too.
  request.mutable_follow()->set_output(follow.job.log_directory().empty());
  request.mutable_follow()->set_undelivered(shows_messages);
  follow.connection.emplace(IVY_TRY(CtlConnection::send_request(directory, request)));
  follow.job = IVY_TRY(follow.connection->receive()).description();
  return follow;
}

Result<Followed> follow_job(FollowRequest request) {
  IVY_CHECK(check_ranks(request.options->ranks, request.job.world_size()));
  return Follower(std::move(request)).run();
}

}  // namespace ivy

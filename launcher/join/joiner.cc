// SPDX-License-Identifier: Apache-2.0
// dial() starts reach(), the coroutine that connects to node 0 until send_greeting() has succeeded.
// stream_bytes() then passes each message of the connection to receive(), which counts it, and to
// take(), which calls one function per kind: join(), begin(), attempt(), end(). redial() follows if
// the connection closes.
// Before Begin, may_redial() and await_begin() limit the waits. Without a message End, give_up() or
// await_final_message() ends this process.
#include "launcher/join/joiner.h"

#include <algorithm>
#include <boost/asio/post.hpp>
#include <boost/asio/signal_set.hpp>
#include <boost/asio/thread_pool.hpp>
#include <chrono>
#include <csignal>
#include <cstdio>
#include <deque>
#include <memory>
#include <utility>

#include "launcher/join/join_wire.h"
#include "launcher/links/srun/dial_back_stream.h"
#include "launcher/links/tcp_dial.h"
#include "launcher/screen/output.h"
#include "launcher/streams/line_child.h"
#include "launcher/streams/sequence.h"
#include "proto/contract/build.h"
#include "proto/contract/exit_code.h"
#include "proto/contract/limits.h"
#include "proto/contract/text.h"
#include "proto/os/clock.h"
#include "proto/os/process.h"
#include "proto/wire/dial_wire.h"

namespace ivy {
namespace {

using boost::system::error_code;
using std::chrono::milliseconds;

constexpr milliseconds kPause{500};
constexpr milliseconds kConnectTimeout{3'000};
constexpr milliseconds kHandshakeTimeout{5'000};
// A failure to connect is reported, once, after this time.
constexpr std::int64_t kReportFailureNs = 3'000'000'000;
// Welcome contains the time by which node 0 will have started the job or given up; this margin
// allows for the network.
constexpr milliseconds kBeginMargin{5'000};
// A wait is reported to the user after the first time, then at the second interval.
constexpr std::chrono::seconds kFirstNamed{2};
constexpr std::chrono::seconds kNamedAgain{30};
// Limit for showing the remaining output if the files of an attempt could not be opened.
constexpr milliseconds kDropRest{2'000};
// Limit for ivy-node to exit after the job has ended; then it is killed.
constexpr std::chrono::seconds kNodeTimeout{5};
// How long to wait for node 0's message about the end of the job after ivy-node has exited.
constexpr std::chrono::seconds kFinalMessageTimeout{15};
// Number of the user's interrupts that are passed on to node 0. The next one ends this process.
constexpr int kMaxPassedOn = 2;

Environment without_secret(const Environment& caller) {
  Environment rest;
  for (const EnvVariable& variable : caller)
    if (variable.name != kJoinSecretVariable) rest.push_back(variable);
  return rest;
}

// The state of the messages that is kept when a connection breaks; counted from Begin on
// (joined_node.h: acknowledged, consumed).
struct MessageState {
  CtlDecoder decoder;  // Replaced with each connection.
  bool is_up = false;  // A connection is up.
  std::string job_id;
  std::uint64_t received_messages = 0;  // Messages that were received from node 0.
  std::uint64_t consumed_bytes = 0;
  std::vector<int> passed_signals;
};

class Joiner final : public OutputEvents,
                     public RemoteOutput,
                     private DialBackStreamEvents,
                     private LineChildEvents {
 public:
  Joiner(boost::asio::io_context& loop, const JobRequest& request, const JoinKey& key);
  int run();

 private:
  // OutputEvents
  void output_consumed(int host_index, std::uint64_t bytes) override;
  void output_closed() override {
    if (!exit_code_) pass_on(SIGPIPE);
  }
  // RemoteOutput: each node shows its own output, and node 0 sends ivyrun's messages.
  bool shows_elsewhere(int host_index) const override { return host_index != host_; }
  void show(const OutputSource&, std::string_view, bool) override {}
  void show_message(std::string_view) override {}
  // DialBackStreamEvents: the connection to node 0.
  void stream_bytes(std::string_view bytes) override;
  void stream_drained() override {}
  void stream_ended(const std::string&) override { redial(); }
  // LineChildEvents: ivy-node.
  void child_output(const std::string&) override {}
  void child_error(const std::string& line) override { print("ivyrun: " + line + "\n"); }
  void child_exited(const ExitStatus& status) override;

  Awaitable<void> reach();
  Awaitable<Result<void>> send_greeting(int fd, bool is_v6);
  void dial();
  bool may_redial(const std::string& why, std::int64_t began_ns);
  void serve();
  bool take(const join::NodeZeroMessage& message);
  void join(const join::Welcome& welcome);
  void await_begin();
  void begin(const join::Begin& begin);
  Result<void> start_node(const join::Begin& begin);
  void await_final_message();
  void attempt(const join::Attempt& attempt);
  void await_files();
  std::string files() const;
  void reject_files(const std::string& when);
  void end(int exit_code);
  void redial();
  void wait_for_signal();
  void interrupted(int signal);
  void send(const join::NodeMessage& message) {
    if (messages_.is_up) stream_->write(encode_join(message));
  }
  bool receive(const join::NodeZeroMessage& message);
  void send_consumed();
  void send_interrupt(std::size_t number);
  void pass_on(int signal);
  void give_up();
  void print(const std::string& text);
  void reject(const Diagnostic& why);
  void finish_output();
  void check_finished();
  std::string head() const { return with_port(options_.join_address, options_.join_port); }

  boost::asio::io_context& loop_;
  const JobRequest& request_;
  const Options& options_;
  std::unique_ptr<PskTls> tls_;
  JoiningNode self_;
  boost::asio::thread_pool resolvers_{1};
  std::unique_ptr<Sequence> dialling_;
  std::shared_ptr<DialBackStream> stream_;
  MessageState messages_;
  boost::asio::signal_set signals_;
  int interrupts_ = 0;
  bool has_reported_failure_ = false;
  std::unique_ptr<Output> output_;
  int host_ = -1;  // This host's number in the job; -1 before Begin.
  // The files of an attempt are being opened; later messages wait in held_.
  bool is_opening_ = false;
  std::deque<join::NodeZeroMessage> held_;
  std::shared_ptr<LineChild> node_;
  std::optional<int> exit_code_;
  bool is_output_finished_ = false;   // All output of this host's ranks has been written.
  std::int64_t begins_until_ns_ = 0;  // The time by which node 0 has started the job or given up.
  boost::asio::steady_timer node_timer_, begin_timer_, files_timer_;
};

Joiner::Joiner(boost::asio::io_context& loop, const JobRequest& request, const JoinKey& key)
    : loop_(loop),
      request_(request),
      options_(request.options),
      signals_(loop),
      node_timer_(loop),
      begin_timer_(loop),
      files_timer_(loop) {
  auto tls = PskTls::make(PskTls::Side::kClient, kJoinIdentity, key.key);
  if (tls.ok()) tls_ = std::move(tls).value();
  self_.rank = *options_.node_rank;
  self_.host = own_host_name();
  self_.process = make_job_identity().job_id;
  self_.build = build_name();
  self_.terms = options_.join_terms;
}

int Joiner::run() {
  // Node 0's ivyrun passes these signals on to all ranks, so this one ignores them.
  for (const int signal : {SIGUSR1, SIGUSR2}) std::signal(signal, SIG_IGN);
  for (const int signal : {SIGINT, SIGTERM, SIGHUP, SIGQUIT}) signals_.add(signal);
  wait_for_signal();
  dial();
  loop_.run();
  return exit_code_.value_or(kExitInternal);
}

void Joiner::wait_for_signal() {
  signals_.async_wait([this](const error_code& error, int signal) {
    if (error) return;
    wait_for_signal();
    interrupted(signal);
  });
}

void Joiner::print(const std::string& text) {
  if (output_) return output_->print(text);
  std::fputs(escape_control(text).c_str(), stderr);
}

void Joiner::reject(const Diagnostic& why) {
  print(render(why));
  end(why.exit_code);
}

void Joiner::dial() {
  dialling_ = std::make_unique<Sequence>(loop_);
  dialling_->start(reach());
}

Awaitable<void> Joiner::reach() {
  const std::int64_t began_ns = monotonic_ns();
  const DialLimits limits{kConnectTimeout, kConnectTimeout};
  for (;; co_await dialling_->sleep(kPause)) {
    Dialled dialled = co_await dial_tcp(*dialling_, resolvers_, options_.join_address,
                                        options_.join_port, limits);
    if (dialled.failed) {
      // Node 0 listens as long as it runs, so a refusal means that it has exited.
      if (output_ && dialled.failed->failure == LinkFailure::kRefused) co_return give_up();
      if (!may_redial(dialled.failed->message.line(), began_ns)) co_return;
      continue;
    }
    const bool is_v6 = dialled.peer_address.find(':') != std::string::npos;
    const Result<void> greeting_sent = co_await send_greeting(dialled.socket.release(), is_v6);
    if (greeting_sent.ok()) co_return serve();
    if (greeting_sent.error().code == Code::kUnauthenticated) {
      // Another program has taken node 0's port, so node 0 has exited.
      if (output_) co_return give_up();
      const Diagnostic why{
          .id = "IVY-J004",
          .what = "the server at " + head() + " rejected this node",
          .cause =
              "the TLS handshake with this node's key failed: " + greeting_sent.error().message,
          .fix =
              "use the same --join-secret-file (or IVY_JOIN_SECRET) and --rdzv-id on every node;\n"
              "or, if another program uses that port, choose another: --master-port PORT, the same "
              "on every node",
          .exit_code = kExitRejected};
      co_return reject(why);
    }
    if (!may_redial(greeting_sent.error().message, began_ns)) co_return;
  }
}

Awaitable<Result<void>> Joiner::send_greeting(int fd, bool is_v6) {
  boost::asio::ip::tcp::socket socket(loop_);
  error_code ignored;
  socket.assign(is_v6 ? boost::asio::ip::tcp::v6() : boost::asio::ip::tcp::v4(), fd, ignored);
  stream_ = std::make_shared<DialBackStream>(std::move(socket), *tls_);
  messages_.decoder = CtlDecoder();
  const auto begin = [this](const Arrival<Result<void>>& arrive) {
    DialGreeting greeting;
    greeting.kind = DialGreeting::Kind::kJoin;
    greeting.host = static_cast<std::uint32_t>(self_.rank);
    stream_->send_greeting(greeting, arrive);
  };
  const std::optional<Result<void>> done =
      co_await dialling_->wait_at_most<Result<void>>(kHandshakeTimeout, begin);
  if (done && done->ok()) co_return Result<void>();
  stream_->stop();
  if (done) co_return done->error();
  co_return Error{Code::kDeadlineExceeded, "node 0 did not respond"};
}

// Returns whether to dial again. If the time limit has expired, reports that and returns false.
bool Joiner::may_redial(const std::string& why, std::int64_t began_ns) {
  const std::int64_t passed_ns = monotonic_ns() - began_ns;
  if (output_) {
    const bool continues = std::chrono::nanoseconds(passed_ns) < kAbsenceLease;
    if (!continues) give_up();
    return continues;
  }
  if (std::chrono::nanoseconds(passed_ns) >= options_.start_timeout) {
    reject(Diagnostic{.id = "IVY-J004",
                      .what = "could not reach node 0 within --start-timeout",
                      .where = node_text(self_.rank, self_.host) + ", dialling " + head(),
                      .cause = why,
                      .fix = "start node 0 on that host: ivyrun --node-rank 0 ... with the same "
                             "--master-port;\nor allow more time: --start-timeout 10m",
                      .exit_code = kExitHostsNotUp});
    return false;
  }
  if (passed_ns >= kReportFailureNs && !std::exchange(has_reported_failure_, true) &&
      !options_.quiet)
    print("ivyrun: node " + std::to_string(self_.rank) + " is waiting for node 0 at " + head() +
          ": " + why + "\n");
  return true;
}

void Joiner::serve() {
  if (!output_) {
    // Applies until Welcome arrives, which contains node 0's limit.
    begins_until_ns_ = monotonic_ns() + std::chrono::nanoseconds(options_.start_timeout).count();
    begin_timer_.expires_after(kFirstNamed);
    await_begin();
  }
  // At the end, because it delivers what has arrived already.
  stream_->start(*this);
}

void Joiner::stream_bytes(std::string_view bytes) {
  const std::uint64_t received_before = messages_.received_messages;
  const bool continues = take_messages<join::NodeZeroMessage>(
      messages_.decoder, bytes,
      [this](const join::NodeZeroMessage& message) { return receive(message); });
  if (!continues) return redial();
  if (messages_.received_messages == received_before || exit_code_) return;
  join::NodeMessage message;
  message.mutable_acknowledged()->set_messages(messages_.received_messages);
  send(message);
}

// Limits the wait for Begin: node 0 or its host may hang without breaking the connection.
void Joiner::await_begin() {
  begin_timer_.async_wait([this](const error_code& error) {
    if (error || output_ || exit_code_) return;
    const std::int64_t left_ns = begins_until_ns_ - monotonic_ns();
    if (left_ns <= 0)
      return reject(Diagnostic{
          .id = "IVY-J004",
          .what = "node 0 neither started the job nor gave up within its --start-timeout",
          .where = node_text(self_.rank, self_.host) + ", joined with " + head(),
          .cause = "its ivyrun is suspended, or its host is no longer reachable",
          .fix = "check the output of node 0; start every node again",
          .exit_code = kExitHostsNotUp});
    if (!options_.quiet)
      print("ivyrun: node " + std::to_string(self_.rank) + " has reached node 0 at " + head() +
            "; waiting for the other nodes\n");
    begin_timer_.expires_after(
        std::min<std::chrono::nanoseconds>(kNamedAgain, std::chrono::nanoseconds(left_ns)));
    await_begin();
  });
}

bool Joiner::receive(const join::NodeZeroMessage& message) {
  // Each connection starts with a new Welcome, which is not counted and not repeated.
  if (message.has_begin() || (messages_.received_messages > 0 && !message.has_welcome()))
    ++messages_.received_messages;
  if (!is_opening_) return take(message);
  held_.push_back(message);
  if (!message.has_end()) return true;
  // The files could not be opened before the job ended. The last message may contain the reason for
  // its end, so messages are printed.
  for (const join::NodeZeroMessage& held : held_)
    if (held.has_notice()) print(held.notice().text());
  return take(message);
}

bool Joiner::take(const join::NodeZeroMessage& message) {
  switch (message.kind_case()) {
    case join::NodeZeroMessage::kWelcome:
      join(message.welcome());
      return true;
    case join::NodeZeroMessage::kBegin:
      if (!output_) begin(message.begin());
      return true;
    case join::NodeZeroMessage::kAttempt:
      if (output_) attempt(message.attempt());
      return true;
    case join::NodeZeroMessage::kOutput:
      if (output_)
        output_->worker_bytes(static_cast<int>(message.output().rank()),
                              static_cast<int>(message.output().stream()), message.output().bytes(),
                              message.output().end());
      return true;
    case join::NodeZeroMessage::kNotice:
      print(message.notice().text());
      return true;
    case join::NodeZeroMessage::kEnd:
      // Without its output a job is not a success.
      if (is_opening_ && message.end().exit_code() == 0)
        reject_files("before the job had ended");
      else
        end(message.end().exit_code());
      return true;
    case join::NodeZeroMessage::KIND_NOT_SET:
      return true;
  }
  return true;
}

void Joiner::join(const join::Welcome& welcome) {
  begins_until_ns_ =
      monotonic_ns() +
      std::chrono::nanoseconds(milliseconds(welcome.begins_within_ms()) + kBeginMargin).count();
  if (options_.verbose > 0) print("ivyrun: connected to node 0 at " + head() + "\n");
  join::NodeMessage message;
  *message.mutable_join() = encode_node(self_);
  message.mutable_join()->set_job_id(messages_.job_id);
  message.mutable_join()->set_received(messages_.received_messages);
  messages_.is_up = true;
  send(message);
  // Repeats reports that may have been lost with the last connection.
  if (messages_.consumed_bytes > 0) send_consumed();
  for (std::size_t number = 1; number <= messages_.passed_signals.size(); ++number)
    send_interrupt(number);
}

void Joiner::send_consumed() {
  join::NodeMessage message;
  message.mutable_consumed()->set_total(messages_.consumed_bytes);
  send(message);
}

void Joiner::send_interrupt(std::size_t number) {
  join::NodeMessage message;
  message.mutable_interrupt()->set_signal(messages_.passed_signals[number - 1]);
  message.mutable_interrupt()->set_number(static_cast<std::uint32_t>(number));
  send(message);
}

void Joiner::pass_on(int signal) {
  messages_.passed_signals.push_back(signal);
  send_interrupt(messages_.passed_signals.size());
}

void Joiner::output_consumed(int, std::uint64_t bytes) {
  messages_.consumed_bytes += bytes;
  if (!exit_code_) send_consumed();
}

void Joiner::begin(const join::Begin& begin) {
  begin_timer_.cancel();
  host_ = static_cast<int>(begin.host());
  messages_.job_id = begin.job_id();
  output_ = std::make_unique<Output>(loop_, options_, begin.job_id(), OutputTarget::kConsole, *this,
                                     this);
  for (const std::string& note : options_.notes)
    if (!options_.quiet) print("ivyrun: note: " + note + "\n");
  const Result<void> started = start_node(begin);
  if (!started.ok())
    reject(Diagnostic{
        .id = "IVY-J004",
        .what = "ivy-node cannot be started here: " + started.error().message,
        .where = node_text(self_.rank, self_.host),
        .fix = "reinstall ivyrun: ivy-node must be an executable file in the same directory",
        .exit_code = kExitRejected});
}

Result<void> Joiner::start_node(const join::Begin& begin) {
  DialOrder order;
  order.job_id = begin.job_id();
  order.key = begin.key();
  order.silence = milliseconds(begin.silence_ms());
  order.addresses = {{stream_->peer_address(), options_.join_port}};
  order.hosts.assign(begin.hosts().begin(), begin.hosts().end());
  order.self = begin.host();
  node_ = IVY_TRY(LineChild::start(loop_, {request_.node.path, "dial"},
                                   without_secret(request_.caller), *this));
  // The input stays open: when it closes, ivy-node knows that this process has exited.
  node_->write(encode_dial_order(order));
  return {};
}

void Joiner::child_exited(const ExitStatus&) {
  check_finished();
  if (!exit_code_) await_final_message();
}

// ivy-node has exited with its workers; waits for node 0's message with the reason.
void Joiner::await_final_message() {
  node_timer_.expires_after(kFinalMessageTimeout);
  node_timer_.async_wait([this](const error_code& error) {
    if (!error && !exit_code_) give_up();
  });
}

void Joiner::attempt(const join::Attempt& attempt) {
  std::vector<RankLocation> locations;
  for (const join::Part& part : attempt.parts())
    for (std::uint32_t local = 0; local < part.ranks(); ++local)
      locations.push_back(RankLocation{static_cast<int>(part.first_rank() + local),
                                       static_cast<int>(local), static_cast<int>(part.host()),
                                       part.name()});
  is_opening_ = true;
  await_files();
  output_->begin(attempt.generation(), locations, static_cast<int>(attempt.max_attempts()),
                 [this](const Result<void>& opened) {
                   is_opening_ = false;
                   files_timer_.cancel();
                   if (exit_code_) return;
                   if (!opened.ok())
                     return reject(Diagnostic{.id = "IVY-O002",
                                              .what = opened.error().message,
                                              .where = node_text(self_.rank, self_.host),
                                              .fix = opened.error().fix,
                                              .exit_code = kExitRejected});
                   while (!held_.empty() && !is_opening_) {
                     const join::NodeZeroMessage next = std::move(held_.front());
                     held_.pop_front();
                     take(next);
                   }
                 });
}

// Reports a slow file system and limits the wait for it, as JobScreen::open_generation() does on
// node 0.
void Joiner::await_files() {
  files_timer_.expires_after(kFirstNamed);
  files_timer_.async_wait([this](const error_code& first) {
    if (first) return;
    if (!options_.quiet) print("ivyrun: waiting for " + files() + "\n");
    files_timer_.expires_after(options_.start_timeout - kFirstNamed);
    files_timer_.async_wait([this](const error_code& late) {
      if (!late) reject_files("within --start-timeout");
    });
  });
}

std::string Joiner::files() const {
  return "the file system of " + (options_.log_dir.empty() ? "--output " + options_.output
                                                           : "--log-dir " + options_.log_dir);
}

void Joiner::reject_files(const std::string& when) {
  reject(Diagnostic{
      .id = "IVY-O002",
      .what = files() + " did not respond " + when,
      .where = node_text(self_.rank, self_.host),
      .fix = "choose a directory on another file system, or allow more time: --start-timeout",
      .exit_code = kExitRejected});
}

void Joiner::end(int exit_code) {
  if (exit_code_) return;
  exit_code_ = exit_code;
  if (stream_) stream_->stop();
  if (node_ && !node_->has_ended()) {
    node_timer_.expires_after(kNodeTimeout);
    node_timer_.async_wait([this](const error_code& error) {
      if (!error && node_) node_->signal(SIGKILL);
    });
  }
  finish_output();
}

void Joiner::finish_output() {
  begin_timer_.cancel();
  files_timer_.cancel();
  if (is_opening_) output_->limit_finish(kDropRest);
  if (output_)
    return output_->finish([this] {
      is_output_finished_ = true;
      check_finished();
    });
  is_output_finished_ = true;
  check_finished();
}

void Joiner::check_finished() {
  if (!exit_code_ || !is_output_finished_ || (node_ && !node_->has_ended())) return;
  signals_.cancel();
  loop_.stop();
}

// The connection closed without End: node 0's ivyrun has exited, or the network has failed.
void Joiner::redial() {
  stream_->stop();
  messages_.is_up = false;
  begin_timer_.cancel();
  if (exit_code_) return;
  if (node_ && node_->has_ended()) return give_up();
  print("ivyrun: " +
        (output_ ? "the connection to node 0 at " + head() + " was closed"
                 : "node 0 at " + head() + " closed the connection") +
        "; reconnecting\n");
  // In a later turn, because this may be called by the coroutine that dial() is to start again.
  boost::asio::post(loop_, [this] { dial(); });
}

void Joiner::give_up() {
  if (exit_code_) return;
  stream_->stop();
  exit_code_ = kExitHostLost;
  print(render(Diagnostic{
      .id = "IVY-J005",
      .what = "node 0 at " + head() + " closed the connection",
      .where = node_text(self_.rank, self_.host),
      .fix = "the output of node 0 may say why; ivyrun is stopping the workers of this node\n"
             "start every node again",
      .exit_code = kExitHostLost}));
  finish_output();
}

void Joiner::interrupted(int signal) {
  const std::string called = signal_name(signal);
  const bool may_pass_on = output_ && !exit_code_ && ++interrupts_ <= kMaxPassedOn;
  if (may_pass_on) return pass_on(signal);
  // ivy-node and its processes exit when this process does.
  print("ivyrun: " + called + ": node " + std::to_string(self_.rank) + " exits now\n");
  exit_code_ = signal == SIGTERM && options_.in_pod ? kExitPreempted : 128 + signal;
  if (output_) output_->limit_finish(milliseconds(100));
  loop_.stop();
}

}  // namespace

int run_joiner(boost::asio::io_context& loop, const JobRequest& request, const JoinKey& key) {
  // Never destroyed, because name lookups may still use it.
  auto* const joiner = new Joiner(loop, request, key);
  return joiner->run();
}

}  // namespace ivy

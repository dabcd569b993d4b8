#include "rendezvous/server/leaf_serve.h"

#include <fcntl.h>
#include <sys/socket.h>
#include <unistd.h>

#include <atomic>
#include <boost/asio/io_context.hpp>
#include <boost/asio/posix/stream_descriptor.hpp>
#include <boost/asio/post.hpp>
#include <boost/asio/signal_set.hpp>
#include <boost/asio/steady_timer.hpp>
#include <cerrno>
#include <chrono>
#include <csignal>
#include <cstring>
#include <memory>
#include <string_view>
#include <utility>

#include "proto/os/clock.h"
#include "rendezvous/client/dial.h"
#include "rendezvous/dialects/leaf.h"
#include "rendezvous/server/server.h"
#include "rendezvous/server/sessions.h"
#include "rendezvous/server/supervisor_socket.h"

namespace ivy::store {
namespace {

using boost::asio::posix::stream_descriptor;
using boost::system::error_code;

constexpr std::size_t kRootReadBytes = 256u << 10;
// The timeout of one attempt; the control descriptor is served between two attempts.
constexpr std::uint64_t kDialNs = 1'000'000'000;
constexpr std::chrono::milliseconds kDialPause{200};
constexpr std::chrono::seconds kNoteDelay{1};

class LeafProcess {
 public:
  LeafProcess(ServeOptions options, DialTarget target)
      : options_(std::move(options)),
        target_(std::move(target)),
        buffer_(std::make_unique<char[]>(kRootReadBytes)) {}

  int run() {
    signals_.async_wait([this](const error_code& error, int) {
      if (!error) loop_.stop();
    });
    count_when_asked();
    if (supervisor_.is_there()) {
      supervisor_.start();
    } else {
      for (const int fd : options_.native_fds) say("listening on " + address_of(fd));
      for (const int fd : options_.torch_fds) say("listening for torch on " + address_of(fd));
    }
    dial();
    say("ready");
    loop_.run();
    drop();
    return 0;
  }

 private:
  void dial() {
    const Interrupt never{-1, &never_, false};
    target_.generation = options_.generation;
    Result<Dialled> made = dial_until(target_, monotonic_ns() + kDialNs, never);
    if (made.ok()) return serve(std::move(*made));
    // Another generation has begun in the store; the supervisor will tell this process, too.
    const bool is_known = made.error().code == Code::kFailedPrecondition;
    if (!is_known && std::exchange(said_, made.error().message) != made.error().message)
      say("log leaf: " + made.error().message);
    timer_.expires_after(kDialPause);
    timer_.async_wait([this](const error_code& error) {
      if (!error) dial();
    });
  }

  void serve(Dialled dialled) {
    said_.clear();
    leaf_ = std::make_unique<Leaf>(options_.generation);
    root_.assign(dialled.socket.release());
    ServerOptions options;
    options.job_id = options_.job_id;
    options.token = target_.token;
    options.generation = options_.generation;
    options.limits = server_limits(options_.torch_connections);
    options.front = leaf_.get();
    options.epoch = std::move(dialled.epoch);
    options.log = [this](const std::string& text) { say("log leaf: " + text); };
    options.turn_ended = [this] { send_some(); };
    server_ = std::make_unique<Server>(loop_, std::move(options));
    for (const int fd : options_.native_fds) listen(fd, Dialect::kNative);
    for (const int fd : options_.torch_fds) listen(fd, Dialect::kTorch);
    wait_readable();
  }

  // Listens on a copy of the descriptor: the socket outlives this server.
  void listen(int fd, Dialect dialect) {
    const int copy = fcntl(fd, F_DUPFD_CLOEXEC, 0);
    if (copy >= 0) server_->listen(copy, dialect);
  }

  // Disconnects all clients of this host.
  void drop() {
    server_.reset();
    leaf_.reset();
    sent_ = 0;
    writing_ = false;
    was_full_ = false;
    lost_ = false;
    error_code ignored;
    if (root_.is_open()) root_.close(ignored);
  }

  // Drops the server in a later turn of the loop, as a turn of that server may be the caller.
  void lose(const std::string& because) {
    if (lost_ || server_ == nullptr) return;
    lost_ = true;
    if (!because.empty()) say_lost_later(because);
    boost::asio::post(loop_, [this] {
      if (!lost_) return;
      drop();
      timer_.cancel();
      dial();
    });
  }

  // Delays the message that the store is lost: at the end of a job the store exits just before its
  // leaves, which is not worth a line.
  void say_lost_later(const std::string& because) {
    note_timer_.expires_after(kNoteDelay);
    note_timer_.async_wait([this, because](const error_code& error) {
      if (!error) say("log leaf: the connection to the store was lost: " + because);
    });
  }

  void wait_readable() {
    root_.async_wait(stream_descriptor::wait_read, [this](const error_code& error) {
      if (!error && !lost_ && leaf_ != nullptr) read_some();
    });
  }

  void read_some() {
    const ssize_t count = recv(root_.native_handle(), buffer_.get(), kRootReadBytes, MSG_DONTWAIT);
    if (count < 0 && (errno == EAGAIN || errno == EINTR)) return wait_readable();
    if (count <= 0) return lose(count == 0 ? "it hung up" : std::strerror(errno));
    Replies replies;
    const Result<void> taken = leaf_->receive(
        std::string_view(buffer_.get(), static_cast<std::size_t>(count)), monotonic_ns(), replies);
    server_->answer(replies);
    if (!taken.ok()) return lose(taken.error().message);
    wait_readable();
  }

  void send_some() {
    if (!writing_ && !lost_) {
      const Sent sent = store::send_some(root_.native_handle(), leaf_->unsent, sent_);
      if (sent == Sent::kBroken) return lose(std::strerror(errno));
      writing_ = sent == Sent::kNotAll;
      if (writing_) wait_writable();
    }
    was_full_ |= !leaf_->takes_more();
  }

  void wait_writable() {
    root_.async_wait(stream_descriptor::wait_write, [this](const error_code& error) {
      if (error || lost_ || leaf_ == nullptr) return;
      writing_ = false;
      send_some();
      go_on();
    });
  }

  // Reads again from clients that were paused because too much was unsent.
  void go_on() {
    if (!was_full_ || !leaf_->takes_more()) return;
    was_full_ = false;
    server_->go_on();
  }

  void say(std::string text) { supervisor_.say(std::move(text)); }

  // Begins the generation at once, so that the old one greets no client of the new one.
  void begin(std::uint32_t generation) {
    options_.generation = generation;
    timer_.cancel();
    drop();
    dial();
  }

  void count_when_asked() {
    asked_.async_wait([this](const error_code& error, int) {
      if (error) return;
      const LeafCounts counts = leaf_ == nullptr ? LeafCounts{} : leaf_->counts();
      say("log leaf: " + std::to_string(counts.asked) + " requests served, " +
          std::to_string(counts.forwarded) + " of the store");
      count_when_asked();
    });
  }

  ServeOptions options_;
  DialTarget target_;
  std::unique_ptr<char[]> buffer_;
  boost::asio::io_context loop_{1};
  boost::asio::signal_set signals_{loop_, SIGTERM, SIGINT};
  boost::asio::signal_set asked_{loop_, SIGUSR1};
  boost::asio::steady_timer timer_{loop_};
  boost::asio::steady_timer note_timer_{loop_};
  SupervisorSocket supervisor_{loop_, options_.control_fd,
                               [this](std::uint32_t generation) { begin(generation); },
                               [this] { loop_.stop(); }};
  stream_descriptor root_{loop_};
  const std::atomic<bool> never_ = false;
  std::unique_ptr<Leaf> leaf_;      // Exists while connected to the store,
  std::unique_ptr<Server> server_;  // and so does the server.
  std::size_t sent_ = 0;            // Bytes of leaf_->unsent already sent.
  bool writing_ = false;
  bool was_full_ = false;
  bool lost_ = false;
  std::string said_;
};

}  // namespace

Result<int> run_leaf(ServeOptions options, const std::string& token) {
  DialTarget target;
  IVY_CHECK(parse_target(options.root, target));
  target.job_id = options.job_id;
  target.token = token;
  target.purpose = "leaf";
  return LeafProcess(std::move(options), std::move(target)).run();
}

}  // namespace ivy::store

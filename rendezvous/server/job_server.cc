#include "rendezvous/server/job_server.h"

#include <sys/socket.h>
#include <unistd.h>

#include <array>
#include <boost/asio/posix/stream_descriptor.hpp>
#include <boost/asio/steady_timer.hpp>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <list>
#include <map>
#include <string_view>
#include <utility>

#include "proto/wire/handshake.h"
#include "rendezvous/server/job_process.h"

namespace ivy::store {
namespace {

using boost::asio::posix::stream_descriptor;
using Clock = std::chrono::steady_clock;

constexpr int kAcceptsPerTurn = 64;
constexpr auto kTick = std::chrono::milliseconds(250);
constexpr int kLogLinesPerTick = 4;
// The descriptors that a job's process needs besides its connections.
constexpr std::uint64_t kOwnDescriptors = 32;

}  // namespace

class JobServer::Core : public std::enable_shared_from_this<JobServer::Core> {
 public:
  Core(boost::asio::io_context& loop, TokenDirectory tokens, JobServerOptions options)
      : loop_(loop), tokens_(std::move(tokens)), options_(std::move(options)), timer_(loop) {}

  void start() { wait_for_tick(); }
  void listen(int fd) {
    listeners_.emplace_back(stream_descriptor(loop_, fd));
    wait_for_clients(listeners_.back());
  }
  void stop() {
    stopped_ = true;
    timer_.cancel();
    boost::system::error_code ignored;
    for (Listener& listener : listeners_) listener.socket.close(ignored);
    while (!guests_.empty()) forget(guests_.front());
    for (auto& [id, job] : jobs_) job.process->end();
    jobs_.clear();
  }

 private:
  struct Listener {
    explicit Listener(stream_descriptor listening) : socket(std::move(listening)) {}
    stream_descriptor socket;
    bool paused = false;  // No descriptor was left; tried again at the next tick.
  };
  // A connection that has not sent its greeting yet.
  struct Guest {
    Guest(boost::asio::io_context& loop, int fd) : socket(loop, fd) {}
    stream_descriptor socket;
    std::string greeting;
    Clock::time_point since = Clock::now();
    std::list<std::shared_ptr<Guest>>::iterator place;
  };
  using GuestPointer = std::shared_ptr<Guest>;
  struct Job {
    TokenStamp token;
    std::shared_ptr<JobProcess> process;
  };

  void wait_for_clients(Listener& listener);
  void take_clients(Listener& listener);
  void take_client(int fd);
  void wait_for_greeting(const GuestPointer& guest);
  void read_greeting(const GuestPointer& guest);
  void show_in(const GuestPointer& guest);
  Result<Job*> job_of(const std::string& id);
  void forget(const GuestPointer& guest);
  void refuse(const GuestPointer& guest, const std::string& because);
  void end_job(const std::string& id, const std::string& because);
  std::vector<std::string> arguments(const std::string& id) const;
  void wait_for_tick();
  void tick();
  void log(const std::string& text);

  boost::asio::io_context& loop_;
  const TokenDirectory tokens_;
  const JobServerOptions options_;
  boost::asio::steady_timer timer_;
  std::list<Listener> listeners_;
  std::list<GuestPointer> guests_;  // Oldest first.
  std::map<std::string, Job> jobs_;
  int log_lines_left_ = kLogLinesPerTick;
  std::size_t log_lines_dropped_ = 0;
  bool stopped_ = false;
};

void JobServer::Core::wait_for_clients(Listener& listener) {
  listener.socket.async_wait(
      stream_descriptor::wait_read,
      [self = shared_from_this(), &listener](const boost::system::error_code& error) {
        if (error || self->stopped_) return;
        self->take_clients(listener);
        if (!listener.paused) self->wait_for_clients(listener);
      });
}

void JobServer::Core::take_clients(Listener& listener) {
  for (int i = 0; i < kAcceptsPerTurn; ++i) {
    const int fd =
        accept4(listener.socket.native_handle(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK);
    if (fd >= 0) {
      take_client(fd);
    } else if (errno == EMFILE || errno == ENFILE || errno == ENOBUFS || errno == ENOMEM) {
      log(std::string("no connection can be taken: ") + std::strerror(errno));
      listener.paused = true;
      return;
    } else if (errno != ECONNABORTED && errno != EINTR) {
      return;
    }
  }
}

void JobServer::Core::take_client(int fd) {
  if (guests_.size() >= options_.half_open)
    refuse(guests_.front(), "too many clients that have not greeted");
  auto guest = std::make_shared<Guest>(loop_, fd);
  guest->place = guests_.insert(guests_.end(), guest);
  wait_for_greeting(guest);
}

void JobServer::Core::wait_for_greeting(const GuestPointer& guest) {
  guest->socket.async_wait(
      stream_descriptor::wait_read,
      [self = shared_from_this(), guest](const boost::system::error_code& error) {
        if (!error) self->read_greeting(guest);
      });
}

// Reads not a byte more than the greeting: the rest belongs to the job's process.
void JobServer::Core::read_greeting(const GuestPointer& guest) {
  std::array<char, kHelloBytes> bytes;
  const ssize_t count = recv(guest->socket.native_handle(), bytes.data(),
                             kHelloBytes - guest->greeting.size(), MSG_DONTWAIT);
  if (count < 0 && (errno == EAGAIN || errno == EINTR)) return wait_for_greeting(guest);
  if (count <= 0) return forget(guest);
  guest->greeting.append(bytes.data(), static_cast<std::size_t>(count));
  const Result<void> begin = check_hello_begin(guest->greeting);
  if (!begin.ok()) return refuse(guest, begin.error().message);
  if (guest->greeting.size() < kHelloBytes) return wait_for_greeting(guest);
  show_in(guest);
}

void JobServer::Core::show_in(const GuestPointer& guest) {
  const Result<HandshakeHello> hello = decode_hello(guest->greeting);
  if (!hello.ok()) return refuse(guest, hello.error().message);
  const Result<Job*> job = job_of(hello->job_id);
  if (!job.ok()) return refuse(guest, job.error().message);
  Knock knock{guest->socket.release(), std::move(guest->greeting)};
  guests_.erase(guest->place);
  const Result<void> passed = (*job)->process->pass(std::move(knock));
  if (!passed.ok()) log("job " + hello->job_id.substr(0, 12) + ": " + passed.error().message);
}

Result<JobServer::Core::Job*> JobServer::Core::job_of(const std::string& id) {
  const Result<TokenStamp> token = tokens_.look(id);
  const auto known = jobs_.find(id);
  if (known != jobs_.end()) {
    if (token.ok() && *token == known->second.token) return &known->second;
    end_job(id, token.ok() ? "its token has changed" : "its token is gone");
  }
  if (!token.ok())
    return Error{token.error().code, "a client of job " + id + ": " + token.error().message};
  if (jobs_.size() >= options_.jobs) {
    return Error{Code::kResourceExhausted, "a client of job " + id + ": there are " +
                                               std::to_string(jobs_.size()) + " jobs already"};
  }
  const auto over = [this, id](const std::string& how) {
    if (!how.empty()) log("job " + id.substr(0, 12) + ": its store has ended: " + how);
    jobs_.erase(id);
  };
  const JobProcess::Limits limits{options_.memory_bytes, options_.connections + kOwnDescriptors};
  Job& job = jobs_[id];
  job.token = *token;
  job.process = std::make_shared<JobProcess>(loop_, arguments(id), limits, over);
  return &job;
}

std::vector<std::string> JobServer::Core::arguments(const std::string& id) const {
  std::vector<std::string> words = {"ivy-rendezvous", "serve",
                                    "--job",          id,
                                    "--token-file",   tokens_.path_of(id),
                                    "--idle-seconds", std::to_string(options_.idle_seconds),
                                    "--job-memory",   std::to_string(options_.memory_bytes >> 20)};
  if (!options_.wal.empty()) words.insert(words.end(), {"--wal", options_.wal});
  return words;
}

void JobServer::Core::forget(const GuestPointer& held) {
  const GuestPointer guest = held;  // `held` may be the list's own.
  boost::system::error_code ignored;
  guest->socket.close(ignored);
  guests_.erase(guest->place);
}

void JobServer::Core::refuse(const GuestPointer& guest, const std::string& because) {
  log("a client is refused: " + because);
  forget(guest);
}

// Ends a job whose token is gone. Its contents are useless then: its clients could not authenticate
// any more.
void JobServer::Core::end_job(const std::string& id, const std::string& because) {
  log("job " + id.substr(0, 12) + " is over: " + because);
  jobs_.at(id).process->end();
  jobs_.erase(id);
  if (options_.wal.empty()) return;
  const std::string path = options_.wal + "/" + id + ".wal";
  for (const std::string& name : {path, path + ".new"}) unlink(name.c_str());
}

void JobServer::Core::wait_for_tick() {
  timer_.expires_after(kTick);
  timer_.async_wait([self = shared_from_this()](const boost::system::error_code& error) {
    if (error || self->stopped_) return;
    self->tick();
    self->wait_for_tick();
  });
}

void JobServer::Core::tick() {
  const auto now = Clock::now();
  const std::chrono::nanoseconds patience(options_.greeting_ns);
  while (!guests_.empty() && now - guests_.front()->since > patience)
    refuse(guests_.front(), "it has not greeted in time");
  std::vector<std::pair<std::string, std::string>> ended;
  for (const auto& [id, job] : jobs_) {
    const Result<TokenStamp> token = tokens_.look(id);
    if (!token.ok()) ended.emplace_back(id, "its token is gone");
    if (token.ok() && *token != job.token) ended.emplace_back(id, "its token has changed");
  }
  for (const auto& [id, because] : ended) end_job(id, because);
  for (Listener& listener : listeners_) {
    if (!std::exchange(listener.paused, false)) continue;
    take_clients(listener);
    if (!listener.paused) wait_for_clients(listener);
  }
  log_lines_left_ = kLogLinesPerTick;
  if (log_lines_dropped_ > 0)
    log("and " + std::to_string(std::exchange(log_lines_dropped_, 0)) + " more such lines");
}

void JobServer::Core::log(const std::string& text) {
  if (!options_.log) return;
  if (log_lines_left_ == 0) {
    ++log_lines_dropped_;
    return;
  }
  --log_lines_left_;
  options_.log(text);
}

JobServer::JobServer(boost::asio::io_context& loop, TokenDirectory tokens, JobServerOptions options)
    : core_(std::make_shared<Core>(loop, std::move(tokens), std::move(options))) {
  core_->start();
}

JobServer::~JobServer() { core_->stop(); }
void JobServer::listen(int listening_fd) { core_->listen(listening_fd); }
void JobServer::stop() { core_->stop(); }

}  // namespace ivy::store

#include "agent/node/supervisor/store_process.h"

#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <boost/asio/posix/stream_descriptor.hpp>
#include <cerrno>
#include <chrono>
#include <csignal>
#include <deque>
#include <map>
#include <utility>

#include "agent/node/spawn/server_child.h"
#include "proto/os/clock.h"
#include "proto/os/descriptor.h"
#include "proto/os/listening_socket.h"
#include "proto/os/own_program.h"

namespace ivy {
namespace {

using boost::asio::posix::stream_descriptor;

constexpr std::size_t kControlBytes = 64u << 10;
// A store that is killed more often than this is not started any more.
constexpr std::size_t kMostRestarts = 5;
constexpr std::chrono::seconds kRestartsWithin{60};
// The part of the error text that tells workers of the restart; ivyrun's own clients do not notice
// it.
constexpr const char* kAfterRestart =
    "; it has been started again from its log (--wal). torch's own client cannot dial again: a "
    "rank that uses a TCPStore from before fails with \"Broken pipe\" or \"Connection reset\", "
    "unless it makes another one";
// Usually more connections than the kernel lets wait at a socket (net.core.somaxconn).
constexpr int kMaxRefused = 16'384;

Result<int> listen_for_store(const std::string& address, std::uint16_t port) {
  const Result<int> fd = listen_tcp(address, port);
  return fd.ok() ? fd : fd.error().context("store");
}

// The job's directory is ours: a socket at this path is a dead leaf's.
Result<int> listen_at_path(const std::string& path) {
  unlink(path.c_str());
  const Result<int> fd = listen_unix(path, SOCK_STREAM, SOMAXCONN);
  return fd.ok() ? fd : fd.error().context("leaf");
}

std::string joined(const std::vector<std::string>& parts) {
  std::string text;
  for (const std::string& part : parts) text += (text.empty() ? "" : ",") + part;
  return text;
}

// Refuses all waiting clients. No rank of the job is left that could redial, and the bound keeps
// unknown peers from holding us here.
void refuse_backlog(int listening_fd) {
  for (int count = 0; count < kMaxRefused; ++count) {
    const Descriptor refused(accept4(listening_fd, nullptr, nullptr, SOCK_CLOEXEC));
    if (!refused) return;
  }
}

// Checked before the workers start, not when the first of them needs the store.
Result<void> check_wal_directory(const std::string& path) {
  if (path.empty()) return {};
  if (mkdir(path.c_str(), 0700) != 0 && errno != EEXIST)
    return errno_error(Code::kPermissionDenied, "the store's log: make directory " + path, errno);
  if (access((path + "/.").c_str(), W_OK | X_OK) != 0)
    return errno_error(Code::kPermissionDenied, "the store's log: write to directory " + path,
                       errno);
  return {};
}

}  // namespace

class StoreProcess::Core : public std::enable_shared_from_this<StoreProcess::Core> {
 public:
  Core(boost::asio::io_context& loop, StoreRequest request, Handlers handlers)
      : loop_(loop),
        request_(std::move(request)),
        handlers_(std::move(handlers)),
        generation_(request_.generation),
        control_(loop) {}

  Result<void> listen() {
    IVY_CHECK(check_wal_directory(request_.wal_directory));
    if (!request_.unix_path.empty())
      add_listener(IVY_TRY(listen_at_path(request_.unix_path)), false);
    for (const std::string& address : request_.addresses) {
      if (request_.port != 0)
        add_listener(IVY_TRY(listen_for_store(address, request_.port)), false);
      if (request_.torch_port != 0)
        add_listener(IVY_TRY(listen_for_store(address, request_.torch_port)), true);
    }
    return {};
  }

  void wait_for_a_client() {
    for (Listener& listener : listeners_) {
      listener.socket.async_wait(
          stream_descriptor::wait_read,
          [self = shared_from_this()](const boost::system::error_code& error) {
            if (!error) self->spawn();
          });
    }
  }

  void begin_generation(std::uint32_t generation, std::function<void()> begun) {
    generation_ = generation;
    puts_.clear();
    // A store that is not running has accepted nothing: its waiting clients are the last
    // generation's.
    if (pid_ == 0) {
      for (Listener& listener : listeners_) refuse_backlog(listener.socket.native_handle());
      return begun();
    }
    begun_ = std::move(begun);
    const std::string line = "generation " + std::to_string(generation) + "\n";
    send(control_.native_handle(), line.data(), line.size(), MSG_NOSIGNAL);
  }

  void put(const std::string& key, const std::string& value) {
    puts_[key] = value;
    if (pid_ != 0) send_put(key, value);
  }

  pid_t pid() const { return pid_; }

  void ended(int wait_status) {
    pid_ = 0;
    if (over_) return;
    while (control_.is_open() && receive_lines() > 0) {
      // Its last line may have arrived already.
    }
    const std::string how = server_end(
        request_.root.empty() ? "the store" : "this host's leaf of the store", wait_status);
    if (WIFSIGNALED(wait_status) && may_start_again()) {
      spawn();
      if (pid_ != 0) handlers_.note(how + kAfterRestart, false);
      return;
    }
    over_ = true;
    handlers_.lost(last_words_.empty() ? how : how + ": " + last_words_);
  }

  void end() {
    over_ = true;
    boost::system::error_code ignored;
    for (Listener& listener : listeners_) listener.socket.close(ignored);
    if (control_.is_open()) control_.close(ignored);
    // It holds nothing of value, and no other job reads its log.
    if (pid_ != 0) kill(pid_, SIGKILL);
    if (request_.wal_directory.empty()) return;
    const std::string log = request_.wal_directory + "/" + request_.job_id + ".wal";
    for (const std::string& path : {log, log + ".new"}) unlink(path.c_str());
  }

 private:
  struct Listener {
    stream_descriptor socket;
    bool torch;
  };

  void add_listener(int fd, bool torch) {
    listeners_.push_back(Listener{stream_descriptor(loop_, fd), torch});
  }

  std::vector<std::string> arguments(int control_fd) {
    std::vector<std::string> words = {"ivy-rendezvous",  request_.root.empty() ? "serve" : "leaf",
                                      "--job",           request_.job_id,
                                      "--token-file",    request_.token_file,
                                      "--generation",    std::to_string(generation_),
                                      "--control-fd",    std::to_string(control_fd),
                                      "--stall-seconds", std::to_string(request_.stall_seconds)};
    for (Listener& listener : listeners_) {
      words.push_back(listener.torch ? "--torch-fd" : "--native-fd");
      words.push_back(std::to_string(listener.socket.native_handle()));
    }
    if (request_.torch_connections != 0)
      words.insert(words.end(),
                   {"--torch-connections", std::to_string(request_.torch_connections)});
    if (!request_.root.empty()) {
      words.insert(words.end(), {"--root", request_.root});
      return words;
    }
    // Without a list only this host's loopback would be admitted.
    std::vector<std::string> peers = request_.torch_peers;
    peers.insert(peers.end(), request_.addresses.begin(), request_.addresses.end());
    if (!request_.wal_directory.empty())
      words.insert(words.end(), {"--wal", request_.wal_directory});
    words.push_back("--torch-peers");
    words.push_back(joined(peers));
    return words;
  }

  // It has the same number there as here.
  static void keep(int fd, ServerChild& server) { server.descriptors.emplace_back(fd, fd); }

  void spawn() {
    if (over_ || pid_ != 0) return;
    DescriptorPair ends = make_stream_pair();
    if (!ends) return fail();
    ServerChild server{node_program(), arguments(ends.theirs.get()), {}, request_.in_step};
    for (Listener& listener : listeners_) keep(listener.socket.native_handle(), server);
    keep(ends.theirs.get(), server);
    const pid_t child = start_server(std::move(server));
    if (child < 0) return fail();
    pid_ = child;
    handlers_.born(child);
    if (control_.is_open()) control_.close();
    lines_.clear();
    control_.assign(ends.ours.release());
    wait_for_lines();
    for (const auto& [key, value] : puts_) send_put(key, value);
    // The store has the sockets now; our copies would keep them open after its death. With a log
    // they are to stay open.
    if (!request_.wal_directory.empty()) return;
    boost::system::error_code ignored;
    for (Listener& listener : listeners_) listener.socket.close(ignored);
  }

  void send_put(const std::string& key, const std::string& value) {
    const std::string line = "put " + key + " " + value + "\n";
    send(control_.native_handle(), line.data(), line.size(), MSG_NOSIGNAL);
  }

  bool may_start_again() {
    if (request_.wal_directory.empty()) return false;
    const auto now = steady_now();
    while (!restarts_.empty() && now - restarts_.front() > kRestartsWithin) restarts_.pop_front();
    if (restarts_.size() >= kMostRestarts) {
      last_words_ = "and that " + std::to_string(kMostRestarts + 1) + " times within " +
                    std::to_string(kRestartsWithin.count()) + " s";
      return false;
    }
    restarts_.push_back(now);
    return true;
  }

  void fail() {
    over_ = true;
    handlers_.lost(errno_error(Code::kUnavailable, "start the store", errno).message);
  }

  void wait_for_lines() {
    control_.async_wait(stream_descriptor::wait_read,
                        [self = shared_from_this()](const boost::system::error_code& error) {
                          if (!error && self->read_lines()) self->wait_for_lines();
                        });
  }

  bool read_lines() {
    const ssize_t count = receive_lines();
    return count > 0 || (count < 0 && (errno == EAGAIN || errno == EINTR));
  }

  ssize_t receive_lines() {
    std::array<char, 4096> bytes{};
    const ssize_t count = recv(control_.native_handle(), bytes.data(), bytes.size(), MSG_DONTWAIT);
    if (count <= 0) return count;
    lines_.append(bytes.data(), static_cast<std::size_t>(count));
    for (std::size_t end = lines_.find('\n'); end != std::string::npos; end = lines_.find('\n')) {
      take_line(lines_.substr(0, end));
      lines_.erase(0, end + 1);
    }
    if (lines_.size() > kControlBytes) lines_.clear();
    return count;
  }

  void take_line(std::string line) {
    for (char& c : line) {
      if (c == '\v') c = '\n';
    }
    constexpr std::string_view kLog = "log ";
    constexpr std::string_view kStall = "stall ";
    constexpr std::string_view kEnd = "end ";
    if (line.starts_with(kEnd)) last_words_ = line.substr(kEnd.size());
    if (line == "generation " + std::to_string(generation_) && begun_)
      return std::exchange(begun_, nullptr)();
    if (line.starts_with(kLog)) handlers_.note(line.substr(kLog.size()), false);
    if (line.starts_with(kStall)) handlers_.note(line.substr(kStall.size()), true);
  }

  boost::asio::io_context& loop_;
  const StoreRequest request_;
  const Handlers handlers_;
  std::uint32_t generation_;
  std::function<void()> begun_;
  std::map<std::string, std::string>
      puts_;  // Kept for a store that starts later in this generation.
  std::vector<Listener> listeners_;
  stream_descriptor control_;
  std::string lines_;
  std::string last_words_;  // Why it ended by itself.
  std::deque<std::chrono::steady_clock::time_point> restarts_;
  pid_t pid_ = 0;
  bool over_ = false;
};

Result<std::unique_ptr<StoreProcess>> StoreProcess::listen(boost::asio::io_context& loop,
                                                           StoreRequest request,
                                                           Handlers handlers) {
  auto core = std::make_shared<Core>(loop, std::move(request), std::move(handlers));
  const Result<void> listening = core->listen();
  if (!listening.ok()) return listening.error();
  core->wait_for_a_client();
  return std::unique_ptr<StoreProcess>(new StoreProcess(std::move(core)));
}

StoreProcess::StoreProcess(std::shared_ptr<Core> core) : core_(std::move(core)) {}
StoreProcess::~StoreProcess() { core_->end(); }
void StoreProcess::begin_generation(std::uint32_t generation, std::function<void()> begun) {
  core_->begin_generation(generation, std::move(begun));
}
void StoreProcess::put(const std::string& key, const std::string& value) { core_->put(key, value); }
pid_t StoreProcess::pid() const { return core_->pid(); }
void StoreProcess::ended(int wait_status) { core_->ended(wait_status); }

}  // namespace ivy

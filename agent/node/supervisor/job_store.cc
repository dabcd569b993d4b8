// SPDX-License-Identifier: Apache-2.0
// JobStore is the interface for the supervisor; Process, the first half, is the store's process:
// its listening sockets (listen(), wait_for_client()), its start (spawn()), the lines that it
// exchanges with the supervisor (send_line(), server_line()), and its end.
#include "agent/node/supervisor/job_store.h"

#include <sys/socket.h>
#include <unistd.h>

#include <boost/asio/posix/stream_descriptor.hpp>
#include <cerrno>
#include <csignal>
#include <map>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "agent/node/spawn/server_child.h"
#include "agent/node/supervisor/server_lines.h"
#include "proto/contract/status.h"
#include "proto/contract/text.h"
#include "proto/os/descriptor.h"
#include "proto/os/listening_socket.h"
#include "proto/os/own_program.h"

namespace ivy {
namespace {

// Usually more than the kernel allows to wait at a socket (net.core.somaxconn).
constexpr int kMaxRejected = 16'384;

// One for each TCPStore of a rank, two in torch up to 2.0, and those that a script creates itself;
// the rest is spare.
std::uint32_t torch_connections_for(std::uint32_t ranks) { return 4 * ranks + 64; }

Result<int> listen_for_store(const std::string& address, std::uint16_t port) {
  const Result<int> fd = listen_tcp(address, port);
  return fd.ok() ? fd : fd.error().context("store");
}

// Closes the connections of all waiting clients. No rank of the job is left that could reconnect;
// the limit keeps other clients from blocking the loop here.
void reject_backlog(int listening_fd) {
  for (int count = 0; count < kMaxRejected; ++count) {
    const Descriptor rejected(accept4(listening_fd, nullptr, nullptr, SOCK_CLOEXEC));
    if (!rejected) return;
  }
}

void send_generation_begun(SupervisorContext& context, std::uint32_t generation) {
  Event event;
  event.mutable_generation_begun()->set_generation(generation);
  context.events.send(event);
}

}  // namespace

// The listening sockets, and the process once a client has connected.
class JobStore::Process final : public std::enable_shared_from_this<Process>,
                                private ServerLinesEvents {
 public:
  Process(SupervisorContext& context, const OpenStore& request)
      : context_(context),
        request_(request),
        generation_(request.generation()),
        control_(context.loop, *this) {}
  ~Process();

  // Returns AlreadyExists, with address and port, if another program listens there; NotFound if
  // this host does not have the address.
  Result<void> listen(std::uint16_t port, std::uint16_t torch_port);
  void begin_generation(std::uint32_t generation);
  // Sets a key of the present generation, also in a store process that starts later. Both texts
  // must be short, and the key must not contain a blank.
  void put(const std::string& key, const std::string& value);
  // Clients from these numeric addresses may use torch's protocol.
  void add_peers(const std::vector<std::string>& addresses);
  pid_t pid() const { return pid_; }  // 0 until it is started.
  bool is_lost() const { return is_lost_; }
  void ended(int wait_status);

 private:
  // ServerLinesEvents
  void server_line(ServerLines& from, const std::string& line) override;

  struct Listener {
    boost::asio::posix::stream_descriptor socket;
    bool torch;
  };

  void wait_for_client(Listener& listener);
  void stop_listening();
  void spawn();
  void add_arguments(int control_fd, ServerChild& server);
  void send_line(const std::string& line);
  void send_put(const std::string& key, const std::string& value);
  void send_note(const std::string& text, bool is_stall);
  void send_lost(const std::string& why);

  SupervisorContext& context_;
  OpenStore request_;
  std::uint32_t generation_;
  bool awaits_generation_ = false;           // The process has not answered "generation N" yet.
  std::map<std::string, std::string> puts_;  // Also sent to a process that starts later.
  std::vector<Listener> listeners_;
  ServerLines control_;
  Descriptor exec_error_;
  std::string reason_;  // Why the process exited, in its own words.
  pid_t pid_ = 0;
  bool is_lost_ = false;
};

JobStore::Process::~Process() {
  stop_listening();
  if (pid_ != 0) kill(pid_, SIGKILL);
}

Result<void> JobStore::Process::listen(std::uint16_t port, std::uint16_t torch_port) {
  const auto add = [this](int fd, bool torch) {
    listeners_.push_back({boost::asio::posix::stream_descriptor(context_.loop, fd), torch});
  };
  for (const std::string& address : request_.addresses()) {
    add(IVY_TRY(listen_for_store(address, port)), false);
    if (torch_port != 0) add(IVY_TRY(listen_for_store(address, torch_port)), true);
  }
  for (Listener& listener : listeners_) wait_for_client(listener);
  return {};
}

void JobStore::Process::wait_for_client(Listener& listener) {
  listener.socket.async_wait(boost::asio::posix::stream_descriptor::wait_read,
                             [weak = weak_from_this()](const boost::system::error_code& error) {
                               const std::shared_ptr<Process> self = weak.lock();
                               if (self && !error) self->spawn();
                             });
}

void JobStore::Process::stop_listening() {
  boost::system::error_code ignored;
  for (Listener& listener : listeners_) listener.socket.close(ignored);
}

void JobStore::Process::spawn() {
  if (is_lost_ || pid_ != 0) return;
  DescriptorPair ends = make_stream_pair();
  pid_t child = -1;
  if (ends) {
    ServerChild server{node_program(), {}, {}, context_.is_in_step()};
    add_arguments(ends.second.get(), server);
    const auto keep = [&](int fd) { server.descriptors.emplace_back(fd, fd); };
    for (Listener& listener : listeners_) keep(listener.socket.native_handle());
    keep(ends.second.get());
    child = start_server(std::move(server), &exec_error_);
  }
  if (child < 0)
    return send_lost(errno_error(Code::kUnavailable, "start the store", errno).message);
  pid_ = child;
  context_.containment->spare(child);
  control_.open(std::move(ends.first), weak_from_this());
  for (const auto& [key, value] : puts_) send_put(key, value);
  // The process has the sockets now; our copies would keep them open after its exit.
  stop_listening();
}

void JobStore::Process::add_arguments(int control_fd, ServerChild& server) {
  std::vector<std::string>& words = server.arguments;
  words = {"ivy-rendezvous",  "serve",
           "--job",           context_.start.job_id,
           "--token-file",    context_.start.directory.token_file(),
           "--generation",    std::to_string(generation_),
           "--control-fd",    std::to_string(control_fd),
           "--stall-seconds", std::to_string(request_.stall_seconds())};
  for (Listener& listener : listeners_) {
    words.push_back(listener.torch ? "--torch-fd" : "--native-fd");
    words.push_back(std::to_string(listener.socket.native_handle()));
  }
  words.insert(words.end(), {"--torch-connections",
                             std::to_string(torch_connections_for(request_.world_size()))});
  // Without a list, only loopback connections would be admitted.
  std::vector<std::string> peers(request_.torch_peers().begin(), request_.torch_peers().end());
  peers.insert(peers.end(), request_.addresses().begin(), request_.addresses().end());
  server.long_arguments = {"--torch-peers", joined(peers, ",")};
}

void JobStore::Process::begin_generation(std::uint32_t generation) {
  generation_ = generation;
  puts_.clear();
  if (pid_ != 0) {
    awaits_generation_ = true;
    return send_line("generation " + std::to_string(generation));
  }
  // No process has accepted a connection, so all waiting clients belong to the previous generation.
  for (Listener& listener : listeners_) reject_backlog(listener.socket.native_handle());
  send_generation_begun(context_, generation);
}

void JobStore::Process::put(const std::string& key, const std::string& value) {
  puts_[key] = value;
  if (pid_ != 0) send_put(key, value);
}

void JobStore::Process::add_peers(const std::vector<std::string>& addresses) {
  for (const std::string& address : addresses) {
    request_.add_torch_peers(address);
    if (pid_ != 0) send_line("peer " + address);
  }
}

void JobStore::Process::send_put(const std::string& key, const std::string& value) {
  send_line("put " + key + " " + value);
}

void JobStore::Process::send_line(const std::string& line) {
  const std::string all = line + "\n";
  send(control_.fd(), all.data(), all.size(), MSG_NOSIGNAL);
}

void JobStore::Process::server_line(ServerLines&, const std::string& raw) {
  std::string line = raw;
  for (char& c : line) {
    if (c == '\v') c = '\n';
  }
  constexpr std::string_view kLog = "log ";
  constexpr std::string_view kStall = "stall ";
  constexpr std::string_view kEnd = "end ";
  if (line.starts_with(kEnd)) reason_ = line.substr(kEnd.size());
  if (line.starts_with(kLog)) send_note("store: " + line.substr(kLog.size()), false);
  if (line.starts_with(kStall)) send_note(line.substr(kStall.size()), true);
  if (line == "generation " + std::to_string(generation_) &&
      std::exchange(awaits_generation_, false))
    send_generation_begun(context_, generation_);
}

void JobStore::Process::ended(int wait_status) {
  pid_ = 0;
  if (is_lost_) return;
  // Its last line may be unread.
  control_.read_some();
  const std::string how = server_end("the store", wait_status, exec_error_);
  send_lost(reason_.empty() ? how : how + ": " + reason_);
}

// A stall names the ranks that wait for each other; other notes name rejected clients.
void JobStore::Process::send_note(const std::string& text, bool is_stall) {
  Event event;
  event.mutable_note()->set_warning(is_stall);
  event.mutable_note()->set_store_stall(is_stall);
  event.mutable_note()->set_text(text);
  context_.events.send(event);
}

void JobStore::Process::send_lost(const std::string& why) {
  is_lost_ = true;
  Event event;
  event.mutable_store_lost()->set_why(why);
  context_.events.send(event);
}

JobStore::~JobStore() = default;

bool JobStore::is_open() const { return process_ && !process_->is_lost(); }

void JobStore::open(const OpenStore& request, std::uint16_t port, std::uint16_t torch_port) {
  const auto process = std::make_shared<Process>(context_, request);
  const Result<void> listening = process->listen(port, torch_port);
  Event event;
  StoreOpened& answer = *event.mutable_store_opened();
  if (listening.ok()) {
    process_ = process;
  } else {
    answer.set_error(listening.error().message);
    answer.set_code(static_cast<std::uint32_t>(listening.error().code));
  }
  context_.events.send(event);
}

void JobStore::add_peers(const std::vector<std::string>& addresses) {
  if (process_) process_->add_peers(addresses);
}

void JobStore::begin_generation(std::uint32_t generation) {
  if (process_)
    process_->begin_generation(generation);
  else
    send_generation_begun(context_, generation);
}

void JobStore::rank_exited(std::uint32_t rank, std::uint32_t rejoins) {
  if (process_) process_->put("ivy/gone/" + std::to_string(rank), std::to_string(rejoins));
}

void JobStore::reaped(pid_t pid, int wait_status) {
  if (process_ && pid == process_->pid()) process_->ended(wait_status);
}

void JobStore::spare_again() const {
  if (process_ && process_->pid() != 0) context_.containment->spare(process_->pid());
}

void JobStore::close() { process_.reset(); }

}  // namespace ivy

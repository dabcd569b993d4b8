// SPDX-License-Identifier: Apache-2.0
#include "agent/node/supervisor/store_process.h"

#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <utility>

#include "proto/contract/text.h"
#include "proto/os/descriptor.h"
#include "proto/os/listening_socket.h"
#include "proto/os/own_program.h"

namespace ivy {
namespace {

// Usually more connections than the kernel lets wait at a socket (net.core.somaxconn).
constexpr int kMaxRefused = 16'384;

Result<int> listen_for_store(const std::string& address, std::uint16_t port) {
  const Result<int> fd = listen_tcp(address, port);
  return fd.ok() ? fd : fd.error().context("store");
}

// Refuses all waiting clients. No rank of the job is left that could redial, and the bound keeps
// unknown peers from holding us here.
void refuse_backlog(int listening_fd) {
  for (int count = 0; count < kMaxRefused; ++count) {
    const Descriptor refused(accept4(listening_fd, nullptr, nullptr, SOCK_CLOEXEC));
    if (!refused) return;
  }
}

}  // namespace

StoreProcess::StoreProcess(boost::asio::io_context& loop, StoreRequest request, Handlers handlers)
    : loop_(loop),
      request_(std::move(request)),
      handlers_(std::move(handlers)),
      generation_(request_.generation),
      control_(loop, [this](const std::string& line) { take_line(line); }) {}

Result<std::shared_ptr<StoreProcess>> StoreProcess::listen(boost::asio::io_context& loop,
                                                           StoreRequest request,
                                                           Handlers handlers) {
  std::shared_ptr<StoreProcess> made(
      new StoreProcess(loop, std::move(request), std::move(handlers)));
  IVY_CHECK(made->listen());
  made->wait_for_a_client();
  return made;
}

StoreProcess::~StoreProcess() {
  stop_listening();
  // It holds nothing of value.
  if (pid_ != 0) kill(pid_, SIGKILL);
}

Result<void> StoreProcess::listen() {
  for (const std::string& address : request_.addresses) {
    add_listener(IVY_TRY(listen_for_store(address, request_.port)), false);
    if (request_.torch_port != 0)
      add_listener(IVY_TRY(listen_for_store(address, request_.torch_port)), true);
  }
  return {};
}

void StoreProcess::add_listener(int fd, bool torch) {
  listeners_.push_back(Listener{boost::asio::posix::stream_descriptor(loop_, fd), torch});
}

void StoreProcess::stop_listening() {
  boost::system::error_code ignored;
  for (Listener& listener : listeners_) listener.socket.close(ignored);
}

void StoreProcess::wait_for_a_client() {
  for (Listener& listener : listeners_) {
    listener.socket.async_wait(boost::asio::posix::stream_descriptor::wait_read,
                               [weak = weak_from_this()](const boost::system::error_code& error) {
                                 const std::shared_ptr<StoreProcess> self = weak.lock();
                                 if (self && !error) self->spawn();
                               });
  }
}

void StoreProcess::begin_generation(std::uint32_t generation, std::function<void()> begun) {
  generation_ = generation;
  puts_.clear();
  // A store that is not running has accepted nothing: its waiting clients are the last
  // generation's.
  if (pid_ == 0) {
    for (Listener& listener : listeners_) refuse_backlog(listener.socket.native_handle());
    return begun();
  }
  begun_ = std::move(begun);
  send_line("generation " + std::to_string(generation));
}

void StoreProcess::put(const std::string& key, const std::string& value) {
  puts_[key] = value;
  if (pid_ != 0) send_put(key, value);
}

void StoreProcess::ended(int wait_status) {
  pid_ = 0;
  if (over_) return;
  // Its last line may have arrived already.
  control_.read_some();
  const std::string how = server_end("the store", wait_status, exec_error_);
  over_ = true;
  handlers_.lost(last_words_.empty() ? how : how + ": " + last_words_);
}

void StoreProcess::add_arguments(int control_fd, ServerChild& server) {
  std::vector<std::string>& words = server.arguments;
  words = {"ivy-rendezvous",  "serve",
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
    words.insert(words.end(), {"--torch-connections", std::to_string(request_.torch_connections)});
  // Without a list only this host's loopback would be admitted.
  std::vector<std::string> peers = request_.torch_peers;
  peers.insert(peers.end(), request_.addresses.begin(), request_.addresses.end());
  server.long_arguments = {"--torch-peers", joined(peers, ",")};
}

void StoreProcess::spawn() {
  if (over_ || pid_ != 0) return;
  DescriptorPair ends = make_stream_pair();
  if (!ends) return fail();
  ServerChild server{node_program(), {}, {}, request_.in_step};
  add_arguments(ends.theirs.get(), server);
  const auto keep = [&](int fd) { server.descriptors.emplace_back(fd, fd); };
  for (Listener& listener : listeners_) keep(listener.socket.native_handle());
  keep(ends.theirs.get());
  const pid_t child = start_server(std::move(server), &exec_error_);
  if (child < 0) return fail();
  pid_ = child;
  handlers_.born(child);
  control_.open(std::move(ends.ours), weak_from_this());
  for (const auto& [key, value] : puts_) send_put(key, value);
  // The store has the sockets now; our copies would keep them open after its death.
  stop_listening();
}

void StoreProcess::send_line(const std::string& line) {
  const std::string all = line + "\n";
  send(control_.fd(), all.data(), all.size(), MSG_NOSIGNAL);
}

void StoreProcess::send_put(const std::string& key, const std::string& value) {
  send_line("put " + key + " " + value);
}

void StoreProcess::fail() {
  over_ = true;
  handlers_.lost(errno_error(Code::kUnavailable, "start the store", errno).message);
}

void StoreProcess::take_line(std::string line) {
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

}  // namespace ivy

// SPDX-License-Identifier: Apache-2.0
#include "agent/node/supervisor/mpi_server.h"

#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <utility>

#include "proto/os/listening_socket.h"

namespace ivy {
namespace {

// The sockets' numbers in the process.
constexpr int kListenFd = 3;
constexpr int kLoopbackFd = 4;
}  // namespace

MpiServer::MpiServer(boost::asio::io_context& loop, MpiServerStart start, Handlers handlers)
    : start_(std::move(start)),
      handlers_(std::move(handlers)),
      listener_(loop),
      loopback_(loop),
      events_(loop, handlers_.event),
      notes_(loop, handlers_.note) {}

Result<std::shared_ptr<MpiServer>> MpiServer::listen(boost::asio::io_context& loop,
                                                     MpiServerStart start, Handlers handlers) {
  std::shared_ptr<MpiServer> made(new MpiServer(loop, std::move(start), std::move(handlers)));
  IVY_CHECK(made->listen());
  return made;
}

MpiServer::~MpiServer() {
  stop_listening();
  life_.reset();
  if (pid_ != 0 && !start_.tidies_up) kill(pid_, SIGKILL);
  unlink(start_.socket.c_str());
}

// The job's directory is ours: a socket at this path is that of the generation before.
Result<void> MpiServer::listen() {
  if (!start_.socket.empty()) {
    unlink(start_.socket.c_str());
    listener_.assign(IVY_TRY(listen_unix(start_.socket, SOCK_STREAM, SOMAXCONN)));
    wait_for_a_client(listener_);
  }
  loopback_.assign(IVY_TRY(listen_tcp("127.0.0.1", 0)));
  wait_for_a_client(loopback_);
  port_ = bound_port(loopback_.native_handle());
  return {};
}

void MpiServer::ended(int wait_status) {
  pid_ = 0;
  drain();
  notes_.read_some();
  if (!std::exchange(over_, true))
    handlers_.lost(server_end(start_.name, wait_status, exec_error_));
}

void MpiServer::wait_for_a_client(Listener& listener) {
  listener.async_wait(Listener::wait_read,
                      [weak = weak_from_this()](const boost::system::error_code& error) {
                        const std::shared_ptr<MpiServer> self = weak.lock();
                        if (self && !error && !self->over_ && self->pid_ == 0) self->spawn();
                      });
}

void MpiServer::stop_listening() {
  boost::system::error_code ignored;
  for (Listener* listener : {&listener_, &loopback_})
    if (listener->is_open()) listener->close(ignored);
}

ServerChild MpiServer::child_of(int in, int out, int err) {
  ServerChild child{start_.program, start_.arguments, {}, start_.in_step};
  child.long_arguments = start_.long_arguments;
  child.descriptors = {{in, STDIN_FILENO}, {out, STDOUT_FILENO}, {err, STDERR_FILENO}};
  const auto give = [&](const char* word, Listener& listener, int number) {
    if (!listener.is_open()) return;
    child.arguments.insert(child.arguments.end(), {word, std::to_string(number)});
    child.descriptors.emplace_back(listener.native_handle(), number);
  };
  give("--listen-fd", listener_, kListenFd);
  give("--loopback-fd", loopback_, kLoopbackFd);
  return child;
}

void MpiServer::spawn() {
  DescriptorPair out = make_pipe();
  DescriptorPair err = make_pipe();
  DescriptorPair in = make_pipe();
  if (!out || !err || !in) return fail();
  const pid_t child =
      start_server(child_of(in.ours.get(), out.theirs.get(), err.theirs.get()), &exec_error_);
  if (child < 0) return fail();
  pid_ = child;
  life_ = std::move(in.theirs);
  handlers_.born(child);
  events_.open(std::move(out.ours), weak_from_this());
  notes_.open(std::move(err.ours), weak_from_this());
  // Our copies would keep clients waiting after its death.
  stop_listening();
}

void MpiServer::fail() {
  over_ = true;
  handlers_.lost(errno_error(Code::kUnavailable, "start " + start_.name, errno).message);
}

}  // namespace ivy

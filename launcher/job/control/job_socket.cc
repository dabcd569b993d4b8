// SPDX-License-Identifier: Apache-2.0
// A connection passes through accept_pending(), read_some() and answer(). answer() replies and
// closes the connection, or calls follow(), stop() or answer_later(), which waits for hosts.
// send_reply() queues a reply for one client, and write() sends its queue. output() and message()
// queue for all followers.
#include "launcher/job/control/job_socket.h"

#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <boost/asio/post.hpp>
#include <cerrno>
#include <chrono>
#include <utility>

#include "launcher/job/control/ctl_wire.h"
#include "launcher/job/control/follow_queue.h"
#include "proto/os/descriptor.h"
#include "proto/os/listening_socket.h"

namespace ivy {
namespace {

using boost::asio::posix::stream_descriptor;

// Limit for a client to send its request, which it does as soon as it is connected.
constexpr std::chrono::seconds kRequestTimeout{10};
// How long the followers of a job that has ended get to read the rest.
constexpr std::chrono::seconds kEndTimeout{1};
// Pause before the next accept if no descriptor is left.
constexpr std::chrono::milliseconds kAcceptPause{100};
// How often to check that the socket still exists.
constexpr std::chrono::seconds kDirectoryCheck{1};
constexpr std::size_t kReadBytes = 4096;
constexpr std::size_t kClientWriteBytes = 256u << 10;
constexpr int kBacklog = 64;

// Returns whether the peer is this user or root. The directory is closed to others, but a wrong
// umask may have opened it.
bool is_allowed(int fd) {
  ucred peer{};
  socklen_t length = sizeof peer;
  return getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &peer, &length) == 0 &&
         (peer.uid == geteuid() || peer.uid == 0);
}

ctl::Reply rejected(const Error& error) {
  ctl::Reply reply;
  reply.mutable_refused()->set_text(error.message);
  reply.mutable_refused()->set_fix(error.fix);
  return reply;
}

ctl::Reply reply_to(const Result<void>& done) {
  if (!done.ok()) return rejected(done.error());
  ctl::Reply reply;
  reply.mutable_done();
  return reply;
}

ctl::Reply message_of(std::string_view text) {
  ctl::Reply reply;
  reply.mutable_message()->set_text(std::string(text.substr(0, kMaxCtlBytes / 2)));
  return reply;
}

}  // namespace

struct JobSocket::Client {
  Client(boost::asio::io_context& loop, int fd) : socket(loop, fd), timeout(loop) {}

  stream_descriptor socket;
  boost::asio::steady_timer timeout;
  CtlDecoder decoder;
  FollowQueue queue;
  std::string out;  // Bytes that were taken from the queue and not yet written.
  std::size_t written = 0;
  bool is_writing = false;
  bool has_request = false;     // It has sent its request.
  bool follows = false;         // A follower: gets messages and the end.
  bool follows_output = false;  // It gets the workers' output as well.
  bool shows_messages = false;  // It prints messages for its user, so these need not be kept.
  bool closes = false;          // It is closed once everything has been written.
  bool is_closed = false;
};

Result<std::unique_ptr<JobSocket>> JobSocket::open(boost::asio::io_context& loop,
                                                   const std::string& job_id,
                                                   CtlRequests& requests) {
  remove_stale_launcher_directories();
  LockedLauncherDirectory directory = IVY_TRY(make_launcher_directory(job_id));
  const Result<int> fd = listen_unix(directory.socket(), SOCK_STREAM, kBacklog);
  if (!fd.ok()) {
    remove_launcher_directory(directory);
    return fd.error();
  }
  return std::unique_ptr<JobSocket>(new JobSocket(loop, std::move(directory), *fd, requests));
}

JobSocket::JobSocket(boost::asio::io_context& loop, LockedLauncherDirectory directory, int fd,
                     CtlRequests& requests)
    : loop_(loop),
      directory_(std::move(directory)),
      listener_(loop, fd),
      requests_(requests),
      accept_timer_(loop),
      directory_timer_(loop),
      end_timer_(loop) {
  accept();
  schedule_directory_check();
}

// Makes the socket again if another program has removed it, such as a cleaner of /tmp.
void JobSocket::schedule_directory_check() {
  directory_timer_.expires_after(kDirectoryCheck);
  directory_timer_.async_wait([this, alive = alive_](const boost::system::error_code& error) {
    if (error || !*alive || !listener_.is_open()) return;
    if (restore_launcher_directory(directory_)) {
      if (const Result<int> fd = listen_unix(directory_.socket(), SOCK_STREAM, kBacklog); fd.ok()) {
        boost::system::error_code ignored;
        listener_.close(ignored);
        listener_.assign(*fd);
        is_accepting_ = false;
        accept();
      }
    }
    schedule_directory_check();
  });
}

JobSocket::~JobSocket() {
  *alive_ = false;
  remove_launcher_directory(directory_);
}

std::size_t JobSocket::followers() const {
  return static_cast<std::size_t>(
      std::count_if(clients_.begin(), clients_.end(),
                    [](const ClientPointer& client) { return client->follows; }));
}

void JobSocket::accept() {
  if (std::exchange(is_accepting_, true)) return;
  listener_.async_wait(stream_descriptor::wait_read,
                       [this, alive = alive_](const boost::system::error_code& error) {
                         if (error || !*alive) return;
                         is_accepting_ = false;
                         accept_pending();
                       });
}

void JobSocket::accept_pending() {
  int failure = 0;
  while (clients_.size() - followers() < kMaxClients) {
    Descriptor socket(
        accept4(listener_.native_handle(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
    failure = socket ? 0 : errno;
    if (failure == EINTR || failure == ECONNABORTED) continue;
    if (!socket) break;
    if (!is_allowed(socket.get())) continue;
    const auto client = std::make_shared<Client>(loop_, socket.release());
    clients_.push_back(client);
    client->timeout.expires_after(kRequestTimeout);
    client->timeout.async_wait(
        [this, client, alive = alive_](const boost::system::error_code& error) {
          if (!error && *alive) close(client);
        });
    read(client);
  }
  // No free slot: the next client that closes or becomes a follower calls this function again.
  if (clients_.size() - followers() >= kMaxClients) return;
  if (failure == 0 || failure == EAGAIN) return accept();
  // Most likely no descriptor is left. Waiting for a readable listener would return immediately.
  accept_timer_.expires_after(kAcceptPause);
  accept_timer_.async_wait([this, alive = alive_](const boost::system::error_code& ended) {
    if (!ended && *alive && listener_.is_open()) accept();
  });
}

void JobSocket::read(const ClientPointer& client) {
  client->socket.async_wait(stream_descriptor::wait_read,
                            [this, client, alive = alive_](const boost::system::error_code& error) {
                              if (!error && *alive && !client->is_closed) read_some(client);
                            });
}

void JobSocket::read_some(const ClientPointer& client) {
  std::array<char, kReadBytes> buffer;
  const ssize_t count = ::read(client->socket.native_handle(), buffer.data(), buffer.size());
  if (count < 0 && (errno == EAGAIN || errno == EINTR)) return read(client);
  if (count <= 0) return close(client);
  // Bytes after the request have no meaning, but show that the client is still there.
  if (!client->has_request) {
    client->decoder.feed(std::string_view(buffer.data(), static_cast<std::size_t>(count)));
    const Result<std::optional<std::string>> message = client->decoder.next();
    if (!message.ok()) return close(client);
    if (*message) {
      ctl::Request request;
      if (!request.ParseFromString(**message)) return close(client);
      client->has_request = true;
      client->timeout.cancel();
      answer(client, request);
    }
  }
  if (!client->is_closed) read(client);
}

void JobSocket::answer(const ClientPointer& client, const ctl::Request& request) {
  client->closes = true;
  if (request.version() > kCtlVersion)
    return send_reply(
        client, rejected({Code::kFailedPrecondition, "this job was started by an older ivyrun",
                          "use the ivyctl that was installed with that ivyrun"}));
  switch (request.kind_case()) {
    case ctl::Request::kDescribe:
      return describe_to(client);
    case ctl::Request::kFollow:
      return follow(client, request.follow());
    case ctl::Request::kSignal:
      return send_reply(client, reply_to(requests_.signal(request.signal())));
    case ctl::Request::kDescribeStore: {
      Result<ctl::StoreDescription> store = requests_.describe_store();
      if (!store.ok()) return send_reply(client, rejected(store.error()));
      ctl::Reply reply;
      *reply.mutable_store() = std::move(*store);
      return send_reply(client, reply);
    }
    case ctl::Request::kDescribeOperations:
    case ctl::Request::kDescribeStacks:
    case ctl::Request::kDescribeRanks:
      client->closes = false;
      return answer_later(client, request);
    case ctl::Request::kStop:
      return stop(client, request.stop());
    case ctl::Request::KIND_NOT_SET:
      break;
  }
  send_reply(client,
             rejected({Code::kFailedPrecondition, "this job's ivyrun does not know this request",
                       "use the ivyctl that was installed with that ivyrun"}));
}

void JobSocket::follow(const ClientPointer& client, const ctl::Follow& wanted) {
  if (followers() >= kMaxFollowers)
    return send_reply(client, rejected({Code::kResourceExhausted,
                                        std::to_string(kMaxFollowers) +
                                            " clients already follow this job, which is the limit",
                                        "read the files of --log-dir instead"}));
  client->closes = false;
  client->follows = true;
  client->follows_output = wanted.output();
  client->shows_messages = wanted.undelivered();
  describe_to(client);
  send_undelivered(client);
  if (listener_.is_open()) accept();
}

void JobSocket::stop(const ClientPointer& client, const ctl::StopJob& wanted) {
  // The client becomes a follower before the stop, which prints messages and may end the job in the
  // same turn.
  client->closes = false;
  client->follows = true;
  const Result<void> ordered = requests_.stop(wanted);
  client->closes = !ordered.ok();
  send_reply(client, reply_to(ordered));
}

// Handles requests that need answers from the hosts.
void JobSocket::answer_later(const ClientPointer& client, const ctl::Request& request) {
  const auto send_last = [this, client, alive = alive_](const ctl::Reply& reply) {
    if (!*alive || client->is_closed) return;
    client->closes = true;
    send_reply(client, reply);
  };
  if (request.has_describe_operations())
    return requests_.describe_operations([send_last](const std::string& text) {
      ctl::Reply answer;
      answer.mutable_operations()->set_text(text.substr(0, kMaxCtlBytes / 2));
      send_last(answer);
    });
  if (request.has_describe_stacks())
    return requests_.describe_stacks(
        request.describe_stacks(), [send_last](const std::string& text) {
          ctl::Reply answer;
          answer.mutable_stacks()->set_text(text.substr(0, kMaxCtlBytes / 2));
          send_last(answer);
        });
  requests_.describe_ranks(request.describe_ranks(),
                           [this, send_last, alive = alive_](const ctl::RanksDescription& ranks) {
                             if (!*alive) return;
                             ctl::Reply answer;
                             *answer.mutable_ranks() = ranks;
                             *answer.mutable_ranks()->mutable_job() = requests_.describe();
                             send_last(answer);
                           });
}

void JobSocket::describe_to(const ClientPointer& client) {
  ctl::Reply reply;
  *reply.mutable_description() = requests_.describe();
  if (reply.ByteSizeLong() > kMaxCtlBytes / 2) reply.mutable_description()->clear_hosts();
  send_reply(client, reply);
}

void JobSocket::send_reply(const ClientPointer& client, const ctl::Reply& reply) {
  client->queue.reply(reply);
  write(client);
}

void JobSocket::write(const ClientPointer& client) {
  while (!client->is_writing && !client->is_closed) {
    if (client->written == client->out.size()) {
      client->out = client->queue.take(kClientWriteBytes);
      client->written = 0;
    }
    if (client->out.empty()) {
      if (client->closes) close(client);
      return;
    }
    const ssize_t count = send(client->socket.native_handle(), client->out.data() + client->written,
                               client->out.size() - client->written, MSG_NOSIGNAL | MSG_DONTWAIT);
    if (count >= 0) {
      client->written += static_cast<std::size_t>(count);
      continue;
    }
    if (errno == EINTR) continue;
    if (errno != EAGAIN) return close(client);
    client->is_writing = true;
    client->socket.async_wait(
        stream_descriptor::wait_write,
        [this, client, alive = alive_](const boost::system::error_code& error) {
          if (error || !*alive) return;
          client->is_writing = false;
          write(client);
        });
  }
}

void JobSocket::close(const ClientPointer& client) {
  if (client->is_closed) return;
  client->is_closed = true;
  client->timeout.cancel();
  boost::system::error_code ignored;
  client->socket.close(ignored);
  // In a later turn, because callers iterate over the list.
  boost::asio::post(loop_, [this, client, alive = alive_] {
    if (!*alive) return;
    std::erase(clients_, client);
    if (listener_.is_open()) accept();
    check_closed();
  });
}

void JobSocket::output(int rank, int stream, std::string_view bytes, bool end) {
  for (const ClientPointer& client : clients_) {
    if (!client->follows_output || client->is_closed) continue;
    client->queue.output(rank, stream, bytes, end);
    write(client);
  }
}

void JobSocket::message(std::string_view text) {
  const ctl::Reply reply = message_of(text);
  bool is_delivered = false;
  for (const ClientPointer& client : clients_) {
    if (!client->follows || client->is_closed) continue;
    is_delivered = is_delivered || client->shows_messages;
    send_reply(client, reply);
  }
  if (is_delivered || !keeps_undelivered_) return;
  undelivered_ += text;
  if (undelivered_.size() > kUndeliveredBytesMax)
    undelivered_.erase(0, undelivered_.size() - kUndeliveredBytesMax);
}

void JobSocket::send_undelivered(const ClientPointer& client) {
  if (client->shows_messages && !client->is_closed && !undelivered_.empty())
    send_reply(client, message_of(std::exchange(undelivered_, "")));
}

void JobSocket::attempt() {
  for (const ClientPointer& client : clients_)
    if (client->follows && !client->is_closed) describe_to(client);
}

void JobSocket::end(const ctl::JobEnd& end, std::function<void()> done) {
  boost::system::error_code ignored;
  listener_.close(ignored);
  directory_timer_.cancel();
  remove_launcher_directory(directory_);
  on_ended_ = std::move(done);
  ctl::Reply reply;
  *reply.mutable_end() = end;
  const std::vector<ClientPointer> clients = clients_;
  for (const ClientPointer& client : clients) {
    if (client->is_closed) continue;
    client->closes = true;
    if (client->follows) {
      send_reply(client, reply);
    } else {
      write(client);
    }
  }
  end_timer_.expires_after(kEndTimeout);
  end_timer_.async_wait([this, alive = alive_](const boost::system::error_code& error) {
    if (error || !*alive) return;
    const std::vector<ClientPointer> slow = clients_;
    for (const ClientPointer& client : slow) close(client);
  });
  check_closed();
}

void JobSocket::check_closed() {
  if (!on_ended_ || !clients_.empty()) return;
  end_timer_.cancel();
  std::exchange(on_ended_, nullptr)();
}

}  // namespace ivy

// SPDX-License-Identifier: Apache-2.0
// The process `ivy-node pmi`. PMI ("process management interface") is the protocol by which an MPI
// library such as MPICH learns its rank from its launcher, publishes its address (put) and reads
// the addresses of others (get) after a barrier. PmiHost (dialects/pmi_host.h) implements the
// protocol for the ranks of this host without doing any input or output; this file does that for
// it:
//
//   PmiProcess   accepts the ranks' connections, passes their bytes to PmiHost, and performs the
//                effects that it returns: events, replies, closed connections and fences
//   PairExchange performs a fence: exchanges the pairs that were put with the servers of the other
//                hosts through the job's store. That blocks, so it runs on a second thread.
//   run_pmi()    parses the arguments and runs PmiProcess
#include "rendezvous/server/pmi_serve.h"

#include <fcntl.h>
#include <netinet/in.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <unistd.h>

#include <array>
#include <boost/asio/io_context.hpp>
#include <boost/asio/posix/stream_descriptor.hpp>
#include <boost/asio/post.hpp>
#include <boost/asio/steady_timer.hpp>
#include <boost/asio/thread_pool.hpp>
#include <cerrno>
#include <chrono>
#include <csignal>
#include <cstdio>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "proto/contract/exit_code.h"
#include "proto/os/argument_file.h"
#include "proto/os/descriptor.h"
#include "proto/os/files.h"
#include "proto/os/peer_owner.h"
#include "proto/os/process.h"
#include "proto/os/socket_options.h"
#include "proto/wire/mpi_names.h"
#include "proto/wire/mpi_server_options.h"
#include "rendezvous/client/host_fence.h"
#include "rendezvous/client/token_file.h"
#include "rendezvous/dialects/pmi_host.h"

namespace ivy::store {
namespace {

using boost::asio::posix::stream_descriptor;
using boost::system::error_code;
using Blobs = std::vector<std::string>;

// Pause after a failed accept(). Most likely no descriptor is free; the listener remains readable,
// so waiting for it would return immediately.
constexpr std::chrono::milliseconds kAcceptPause{100};
// Size of the read buffer of each connection.
constexpr std::size_t kRankReadBytes = 8u << 10;

// Describes the job to PmiHost. MPI libraries use the job's PMI name (kvsname) in names of shared
// memory, so it contains the job id and the generation.
PmiJob job_of(const MpiServerOptions& options) {
  return {pmi_name(options.job_id, options.generation), options.host, options.ranks_on_hosts};
}

bool is_unix_peer_of_this_user(int fd) {
  ucred peer{};
  socklen_t size = sizeof peer;
  return getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &peer, &size) == 0 && peer.uid == geteuid();
}

// The fences between the hosts of the job. One thread calls exchange(), which blocks.
class PairExchange {
 public:
  explicit PairExchange(MpiServerOptions options) : options_(std::move(options)) {}

  // Gives this host's pairs to the others, and returns the pairs of all hosts.
  Result<Blobs> exchange(const std::string& own) {
    if (options_.ranks_on_hosts.size() == 1) return Blobs{own};
    if (!fence_) IVY_CHECK(connect());
    return fence_->gather(own);
  }

  // Cancels a fence in progress. Call it from the loop's thread when all ranks of this host have
  // left, so that the fence does not reach the store of the next generation.
  void leave() {
    const std::lock_guard lock(mutex_);
    if (client_) client_->cancel();
  }

 private:
  Result<void> connect() {
    if (options_.store.empty())
      return Error{Code::kFailedPrecondition,
                   "MPI across hosts needs the job's store: leave out --no-store"};
    ClientOptions to;
    to.address = options_.store;
    to.job_id = options_.job_id;
    to.token = IVY_TRY(read_token(options_.token_file));
    to.generation = options_.generation;
    std::unique_ptr<Client> client = IVY_TRY(Client::connect(to));
    const std::lock_guard lock(mutex_);
    client_ = std::move(client);
    const auto hosts = static_cast<std::uint32_t>(options_.ranks_on_hosts.size());
    fence_ =
        std::make_unique<HostFence>(*client_, "pmi", HostFence::HostPosition{options_.host, hosts});
    return {};
  }

  const MpiServerOptions options_;
  std::mutex mutex_;  // Guards the creation of client_.
  std::unique_ptr<Client> client_;
  std::unique_ptr<HostFence> fence_;
};

class PmiProcess {
 public:
  explicit PmiProcess(const MpiServerOptions& options)
      : exchange_(options), host_(job_of(options)) {
    listener_.socket.assign(options.listen_fd);
    if (options.loopback_fd >= 0) loopback_.socket.assign(options.loopback_fd);
  }

  int run() {
    accept(listener_);
    if (loopback_.socket.is_open()) accept(loopback_);
    loop_.run();
    return 0;
  }

 private:
  struct Listener {
    explicit Listener(boost::asio::io_context& loop) : socket(loop), pause(loop) {}
    stream_descriptor socket;
    boost::asio::steady_timer pause;
  };
  struct Client {
    stream_descriptor socket;
    std::array<char, kRankReadBytes> bytes{};
  };

  void accept(Listener& listener) {
    listener.socket.async_wait(
        stream_descriptor::wait_read, [this, &listener](const error_code& error) {
          if (error) return;
          if (accept_one(listener)) return accept(listener);
          listener.pause.expires_after(kAcceptPause);
          listener.pause.async_wait([this, &listener](const error_code&) { accept(listener); });
        });
  }

  // Returns false if no connection can be accepted for now.
  bool accept_one(Listener& listener) {
    Descriptor fd(accept4(listener.socket.native_handle(), nullptr, nullptr, SOCK_CLOEXEC));
    if (!fd) return errno == EAGAIN || errno == EINTR || errno == ECONNABORTED;
    const bool is_unix = &listener == &listener_;
    const bool is_trusted =
        is_unix ? is_unix_peer_of_this_user(fd.get()) : is_loopback_peer_of_this_user(fd.get());
    // Every message is small and is answered.
    if (!is_unix) disable_nagle(fd.get());
    if (is_trusted) serve(std::move(fd));
    return true;
  }

  bool is_loopback_peer_of_this_user(int fd) {
    const PeerOwners::Owner owner = owners_.owner_of(fd);
    return owner.location == PeerOwners::Location::kThisHost && owner.user == geteuid();
  }

  void serve(Descriptor fd) {
    const PmiHost::Connection number = ++last_;
    host_.opened(number);
    clients_.emplace(number,
                     std::make_shared<Client>(Client{stream_descriptor(loop_, fd.release()), {}}));
    read(number);
  }

  void read(PmiHost::Connection number) {
    const auto found = clients_.find(number);
    if (found == clients_.end()) return;
    const std::shared_ptr<Client> client = found->second;
    client->socket.async_read_some(
        boost::asio::buffer(client->bytes),
        [this, number, client](const error_code& error, std::size_t count) {
          PmiHost::Effects effects;
          if (error) {
            host_.ended(number, effects);
            effects.closed.push_back(number);
          } else {
            host_.received(number, {client->bytes.data(), count}, effects);
          }
          perform(std::move(effects));
          read(number);
        });
  }

  // Writes events first, so that the supervisor knows of a rank's end before the rank gets its
  // answer.
  void perform(PmiHost::Effects effects) {
    for (const std::string& event : effects.events) ivy::write_all(STDOUT_FILENO, event + "\n");
    for (const std::string& note : effects.notes) ivy::write_all(STDERR_FILENO, note + "\n");
    for (const PmiHost::Bytes& reply : effects.replies) send_to(reply);
    for (const PmiHost::Connection number : effects.closed) clients_.erase(number);
    if (clients_.empty()) exchange_.leave();
    if (effects.fence) fence(std::move(*effects.fence));
  }

  // Sends a reply, or disconnects a peer whose socket is full: a PMI client waits for each answer
  // before its next request, so this peer is not one.
  void send_to(const PmiHost::Bytes& reply) {
    const auto found = clients_.find(reply.to);
    if (found == clients_.end()) return;
    const ssize_t count = send(found->second->socket.native_handle(), reply.bytes.data(),
                               reply.bytes.size(), MSG_NOSIGNAL | MSG_DONTWAIT);
    if (count != static_cast<ssize_t>(reply.bytes.size()))
      shutdown(found->second->socket.native_handle(), SHUT_RDWR);
  }

  void fence(std::string own) {
    boost::asio::post(thread_, [this, own = std::move(own)] {
      Result<Blobs> blobs = exchange_.exchange(own);
      boost::asio::post(loop_, [this, blobs = std::move(blobs)] { fenced(blobs); });
    });
  }

  void fenced(const Result<Blobs>& blobs) {
    PmiHost::Effects effects;
    if (blobs.ok())
      host_.fenced(*blobs, effects);
    else if (blobs.error().code != Code::kCancelled)
      effects.events.push_back("error " + blobs.error().message);
    perform(std::move(effects));
  }

  boost::asio::io_context loop_{1};
  boost::asio::thread_pool thread_{1};
  PairExchange exchange_;
  PmiHost host_;
  Listener listener_{loop_};
  Listener loopback_{loop_};
  PeerOwners owners_;
  std::map<PmiHost::Connection, std::shared_ptr<Client>> clients_;
  PmiHost::Connection last_ = 0;
};

}  // namespace

int run_pmi(int argc, char** argv) {
  const Result<std::vector<std::string>> words = with_argument_file(argc, argv);
  const Result<MpiServerOptions> options =
      words.ok() ? parse_mpi_server_options(*words) : words.error();
  if (!options.ok()) {
    std::fprintf(stderr, "ivy-node pmi: %s\nusage: ivy-node pmi %s",
                 options.error().message.c_str(), kMpiServerUsage);
    return kExitUsage;
  }
  std::signal(SIGPIPE, SIG_IGN);
  prctl(PR_SET_NAME, "ivy-pmi");
  raise_descriptor_limit();
  // Never destroyed: the supervisor kills this process, possibly during a fence.
  auto* const process = new PmiProcess(*options);
  return process->run();
}

}  // namespace ivy::store

// SPDX-License-Identifier: Apache-2.0
// Bootstrapping::run() is the sequence. Rank 0 calls open(), which starts the store and publishes
// its address (publish()); the other ranks call find(), which tries until the deadline, by the
// method of their kind of bootstrap (find_by_file(), find_by_torch(), find_at_address()).
// send_greeting() then gives all ranks the same job id and token.
#include "comm/join/bootstrap.h"

#include <poll.h>

#include <algorithm>
#include <optional>
#include <utility>
#include <vector>

#include "comm/contract/resolve.h"
#include "comm/join/endpoint.h"
#include "comm/join/store_listener.h"
#include "comm/join/torch_store.h"
#include "comm/transports/tcp/peer_connections.h"
#include "proto/contract/text.h"
#include "proto/os/clock.h"
#include "proto/os/files.h"
#include "proto/os/process.h"
#include "proto/wire/handshake.h"

namespace ivy::comm {
namespace {

using std::chrono::milliseconds;
using std::chrono::steady_clock;
using TimePoint = steady_clock::time_point;

constexpr std::size_t kTokenBytes = 32;
// The pause between two checks for the file grows, because the file system may be on another host.
constexpr milliseconds kFirstPause{5};
constexpr milliseconds kLongestPause{250};
// How long each of several addresses is tried, not all of which need be reachable from here.
constexpr milliseconds kOneAddress{2'000};
constexpr milliseconds kOneTry{10'000};
constexpr milliseconds kStoreAnswer{10'000};
// Public values, used if no secret was given.
constexpr const char* kNoSecret = "no secret was given to this job";
constexpr const char* kPublicJob = "6976792d706c61696e2d7463702d6a6f";

void pause_for(milliseconds time) { poll(nullptr, 0, static_cast<int>(time.count())); }

milliseconds left_until(TimePoint end) {
  return std::max(milliseconds(1), std::chrono::duration_cast<milliseconds>(end - steady_now()));
}

std::string seconds_text(milliseconds time) {
  const auto tenths = time.count() / 100;
  const std::string rest = tenths % 10 == 0 ? "" : "." + std::to_string(tenths % 10);
  return std::to_string(tenths / 10) + rest + " s";
}

// Derives the job id from the job's name, so that another job's store at the same derived port is
// recognised as a different one.
std::string named_job(const std::string& key) {
  std::string id;
  for (std::uint64_t round = 1; round <= 2; ++round) {
    id += hexadecimal(name_hash(key, kHashBegin * round));
  }
  return id;
}

// Returns whether an address with a port is a loopback address.
bool is_own_host_only(const std::string& address) { return is_loopback(host_of(address)); }

Result<std::string> secret_of(const std::string& path) {
  if (path.empty()) return std::string(kNoSecret);
  // Every rank checks the size, not only rank 0, which passes the token to its store.
  std::optional<std::string> token = read_file(path, PrivateStore::kTokenBytesMax + 1);
  if (token && token->size() > PrivateStore::kTokenBytesMax)
    return Error{Code::kInvalidArgument,
                 "IVY_TOKEN_FILE=" + path + " has more than " +
                     std::to_string(PrivateStore::kTokenBytesMax) + " bytes",
                 "use a shorter file, the same for every rank"};
  if (token && !token->empty()) return *std::move(token);
  return Error{Code::kFailedPrecondition, "IVY_TOKEN_FILE=" + path + " cannot be read, or is empty",
               "give every rank the same file, or none"};
}

// State of one call of bootstrap().
class Bootstrapping {
 public:
  Bootstrapping(const Identity& identity, std::uint32_t generation, milliseconds timeout)
      : identity_(identity),
        generation_(generation),
        timeout_(timeout),
        end_(steady_now() + timeout) {}

  Result<Bootstrapped> run() {
    if (identity_.bootstrap == Bootstrap::kAddress) {
      token_ = IVY_TRY(secret_of(identity_.token_file));
      job_id_ = identity_.bootstrap_key.empty() ? kPublicJob : named_job(identity_.bootstrap_key);
    }
    IVY_CHECK(name_place());
    Bootstrapped joined = IVY_TRY(identity_.rank == 0 ? open() : find());
    IVY_CHECK(send_greeting(joined));
    return joined;
  }

 private:
  Result<void> name_place() {
    path_ = identity_.bootstrap_path;
    if (identity_.bootstrap != Bootstrap::kHostFile) return {};
    // Several hosts may share the directory.
    std::string key = own_host_name() + " " + identity_.bootstrap_key;
    if (!identity_.launcher_process.empty()) {
      const std::string launcher = process_above(identity_.launcher_process);
      if (launcher.empty()) {
        return Error{
            Code::kFailedPrecondition,
            identity_.source + " has no process " + identity_.launcher_process +
                " among this process's ancestors, so this job cannot be told apart from others",
            "set IVY_INIT_METHOD=tcp://HOST_OF_RANK_0:PORT or file:///PATH"};
      }
      key += " " + launcher;
    }
    path_ = IVY_TRY(private_path(key));
    return {};
  }

  std::string address_text() const {
    return with_port(identity_.bootstrap_host, identity_.bootstrap_port);
  }
  std::string torch_key() const {
    return "ivycomm/" + identity_.bootstrap_key + "/" + std::to_string(generation_);
  }

  Result<Bootstrapped> open() {
    IVY_CHECK(check_file_is_free());
    if (token_.empty()) {
      token_ = random_bytes(kTokenBytes);
      job_id_ = hexadecimal(random_bytes(16));
    }
    const StoreListener listener = IVY_TRY(StoreListener::open(identity_, end_));
    PrivateStoreOptions options;
    options.listening = listener.socket();
    options.job_id = job_id_;
    options.token = token_;
    options.generation = generation_;
    Bootstrapped joined;
    joined.private_store = IVY_TRY(PrivateStore::start(options));
    joined.client = IVY_TRY(connect(listener.own(), job_id_, token_, left_until(end_)));
    joined.generation = generation_;
    joined.first_host_address = listener.addresses().front();
    IVY_CHECK(publish(listener.addresses(), joined));
    return joined;
  }

  // Fails if a store at the file's addresses answers: it belongs to another job whose ranks have
  // not all joined yet.
  Result<void> check_file_is_free() const {
    if (path_.empty()) return {};
    const Result<Endpoint> endpoint = read_endpoint(path_);
    if (!endpoint.ok()) {
      return endpoint.error().code == Code::kPermissionDenied ? endpoint.error() : Result<void>();
    }
    if (!try_endpoint(*endpoint).ok()) return {};
    return Error{Code::kAlreadyExists,
                 path_ + " belongs to another job that is waiting for its ranks",
                 "give each job a separate path"};
  }

  Result<void> publish(const std::vector<std::string>& addresses, Bootstrapped& joined) const {
    Endpoint endpoint;
    endpoint.job_id = job_id_;
    endpoint.token = token_;
    endpoint.generation = generation_;
    endpoint.addresses = addresses;
    if (!path_.empty()) joined.endpoint_file = IVY_TRY(EndpointFile::write(path_, endpoint));
    if (identity_.bootstrap != Bootstrap::kTorchStore) return {};
    const std::unique_ptr<TorchStore> torch = IVY_TRY(torch_store());
    return torch->set(torch_key(), encode_endpoint(endpoint), end_);
  }

  Result<std::unique_ptr<TorchStore>> torch_store() const {
    return TorchStore::connect(identity_.bootstrap_host, identity_.bootstrap_port,
                               identity_.is_new_torch ? TorchDialect::kNew : TorchDialect::kUnknown,
                               end_);
  }

  Result<std::unique_ptr<store::Client>> connect(const std::string& address,
                                                 const std::string& job_id,
                                                 const std::string& token,
                                                 milliseconds at_most) const {
    store::ClientOptions options;
    options.address = address;
    options.job_id = job_id;
    options.token = token;
    options.generation = generation_;
    options.rank = identity_.rank;
    options.connect_timeout = at_most;
    options.request_timeout = kStoreAnswer;
    options.may_redial = false;  // The store exits with the job and is never restarted.
    return store::Client::connect(options);
  }

  Result<Bootstrapped> find() const {
    if (identity_.bootstrap == Bootstrap::kAddress) return find_at_address();
    if (identity_.bootstrap == Bootstrap::kTorchStore) return find_by_torch();
    return find_by_file();
  }

  Result<Bootstrapped> try_endpoint(const Endpoint& endpoint) const {
    if (endpoint.generation != generation_) {
      return Error{Code::kUnavailable, "it belongs to an earlier world of this job"};
    }
    Result<Bootstrapped> joined = Error{};
    for (const std::string& address : endpoint.addresses) {
      joined = try_address(address, endpoint.job_id, endpoint.token, kOneAddress);
      if (joined.ok()) break;
    }
    return joined;
  }

  Result<Bootstrapped> try_address(const std::string& address, const std::string& job_id,
                                   const std::string& token, milliseconds at_most) const {
    if (!PeerConnections::is_listening(address))
      return Error{Code::kUnavailable, "no process listens at " + address};
    Bootstrapped joined;
    joined.client = IVY_TRY(connect(address, job_id, token, std::min(at_most, left_until(end_))));
    joined.first_host_address = address;
    joined.generation = generation_;
    return joined;
  }

  Result<Bootstrapped> find_by_file() const {
    milliseconds pause = kFirstPause;
    std::string last;
    while (true) {
      const Result<Endpoint> endpoint = read_endpoint(path_);
      if (!endpoint.ok() && endpoint.error().code == Code::kPermissionDenied)
        return endpoint.error();
      if (endpoint.ok()) {
        Result<Bootstrapped> joined = try_endpoint(*endpoint);
        if (joined.ok()) return joined;
        last = joined.error().message;
      }
      if (steady_now() + pause >= end_) break;
      pause_for(pause);
      pause = std::min(2 * pause, kLongestPause);
    }
    const std::string within = " within " + seconds_text(timeout_);
    return Error{Code::kDeadlineExceeded,
                 last.empty() ? "rank 0 has not written " + path_ + within
                              : "rank 0 has not written a new " + path_ + within +
                                    "; the existing one belongs to another run (" + last + ")",
                 "check that rank 0 has started, with the same path on the same file system"};
  }

  Result<Bootstrapped> find_by_torch() const {
    const std::unique_ptr<TorchStore> torch = IVY_TRY(torch_store());
    const Result<std::string> text = torch->wait_get(torch_key(), end_);
    if (!text.ok()) {
      if (text.error().code != Code::kDeadlineExceeded) return text.error();
      return Error{Code::kDeadlineExceeded,
                   "rank 0 has written nothing to torchrun's store at " + address_text() +
                       " within " + seconds_text(timeout_),
                   "check that every rank calls init"};
    }
    const Endpoint endpoint = IVY_TRY(decode_endpoint(*text));
    Result<Bootstrapped> joined = try_endpoint(endpoint);
    const auto may_pass = [](const Error& error) { return error.code != Code::kAlreadyExists; };
    while (!joined.ok() && may_pass(joined.error()) && steady_now() + kLongestPause < end_) {
      pause_for(kLongestPause);
      joined = try_endpoint(endpoint);
    }
    if (!joined.ok() && !may_pass(joined.error())) return is_complete(joined.error());
    if (!joined.ok())
      return joined.error().context("rank 0's store, at the address from torchrun's store");
    return joined;
  }

  Result<Bootstrapped> find_at_address() const {
    std::string last;
    milliseconds pause = kFirstPause;
    while (steady_now() < end_) {
      const Result<std::vector<std::string>> addresses = resolve(identity_.bootstrap_host);
      if (!addresses.ok()) last = addresses.error().message;
      for (std::size_t i = 0; addresses.ok() && i < addresses->size(); ++i) {
        Result<Bootstrapped> joined =
            try_address(with_port((*addresses)[i], identity_.bootstrap_port), job_id_, token_,
                        addresses->size() > 1 ? kOneAddress : kOneTry);
        if (joined.ok()) return joined;
        last = joined.error().message;
        if (joined.error().code == Code::kUnauthenticated) return wrong_job(joined.error());
        if (joined.error().code == Code::kAlreadyExists) return is_complete(joined.error());
      }
      pause_for(std::min(pause, left_until(end_)));
      pause = std::min(2 * pause, kLongestPause);
    }
    return Error{Code::kDeadlineExceeded,
                 "rank 0 has not opened " + address_text() + " within " + seconds_text(timeout_) +
                     " (last: " + last + ")",
                 "check that rank 0 has started on that host; if connections time out instead of "
                 "being refused, suspect "
                 "a firewall"};
  }

  Error is_complete(const Error& error) const {
    return Error{Code::kAlreadyExists, "the job at " + address_text() + ": " + error.message,
                 "check that no other job uses the same address, and that no two processes have "
                 "the same rank"};
  }

  Error wrong_job(const Error& error) const {
    return Error{Code::kUnauthenticated,
                 "the process that listens at " + address_text() +
                     " is not rank 0 of this job, or has a different token: " + error.message,
                 "choose another port, and give all ranks the same IVY_TOKEN_FILE or none"};
  }

  Result<void> send_greeting(Bootstrapped& joined) const {
    const std::string prefix = "ivycomm/meeting/" + std::to_string(generation_) + "/";
    store::Client& store = *joined.client;
    const std::string size = std::to_string(identity_.world_size);
    if (identity_.rank == 0) {
      IVY_CHECK(store.multi_set({{prefix + "size", size},
                                 {prefix + "first_host", joined.first_host_address},
                                 {prefix + "job", hexadecimal(random_bytes(16))},
                                 {prefix + "token", random_bytes(kTokenBytes)}}));
    }
    const std::string first_size = IVY_TRY(store.wait_get(prefix + "size", left_until(end_)));
    if (first_size != size) {
      return Error{Code::kFailedPrecondition,
                   "rank 0 has a world size of " + first_size + ", but rank " +
                       std::to_string(identity_.rank) + " has " + size + " (" +
                       source_text(identity_) + ")",
                   "give all ranks the same world size"};
    }
    const std::string first_host = IVY_TRY(store.wait_get(prefix + "first_host", left_until(end_)));
    // The address that this rank has connected to is better than one that rank 0 guesses, unless it
    // is a loopback address.
    if (is_own_host_only(joined.first_host_address)) joined.first_host_address = first_host;
    // The store's own job id and token may be public, and the store rejects clients once all ranks
    // have joined. The ranks use these for their own connections.
    joined.job_id = IVY_TRY(store.wait_get(prefix + "job", left_until(end_)));
    joined.token = IVY_TRY(store.wait_get(prefix + "token", left_until(end_)));
    const std::string claim = prefix + "rank/" + std::to_string(identity_.rank);
    const Result<void> taken =
        store.set_once(claim, own_host_name() + ", process " + own_process());
    if (taken.ok()) return {};
    if (taken.error().code != Code::kAlreadyExists) return taken.error();
    const Result<std::string> other = store.get(claim);
    return Error{Code::kAlreadyExists,
                 "another process has already joined as rank " + std::to_string(identity_.rank) +
                     " (" + (other.ok() ? *other : "it has exited") + ")",
                 "check that no other job uses the same address, and that no two processes have "
                 "the same rank"};
  }

  const Identity& identity_;
  const std::uint32_t generation_;
  const milliseconds timeout_;
  const TimePoint end_;
  std::string token_;  // If empty, rank 0 creates one.
  std::string job_id_;
  std::string path_;  // The endpoint file, or empty if there is none.
};

}  // namespace

Result<Bootstrapped> bootstrap(const Identity& identity, std::uint32_t generation,
                               milliseconds timeout) {
  return Bootstrapping(identity, generation, timeout).run();
}

}  // namespace ivy::comm

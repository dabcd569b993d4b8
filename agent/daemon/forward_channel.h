// Connections to other hosts' agents that are kept for our user: one gRPC channel per target,
// secured with the certificate that agent.toml names, kept while it is used and ten minutes more.
// When our files change on disk, all kept connections are dropped; the far certificate is judged
// again for each stream.
//
// Thread: the loop's; the check of the far certificate runs on gRPC's. Lifetime: outlived by the
// loop; channels are released on it.
#pragma once

#include <grpcpp/channel.h>

#include <boost/asio/io_context.hpp>
#include <boost/asio/steady_timer.hpp>
#include <chrono>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>

#include "proto/contract/env.h"
#include "proto/contract/status.h"
#include "proto/trust/agent_target.h"
#include "proto/trust/agent_user.h"

namespace ivy {

// A connection to another agent, which is kept for later forwards.
class ForwardChannel {
 public:
  ForwardChannel(const AgentTarget& target, const AgentIdentity& us);
  const std::shared_ptr<grpc::Channel>& grpc() const { return channel_; }
  // Why the far certificate was refused, when that is why there is no connection.
  std::optional<Error> refusal() const;
  // True if the certificate that the far agent has shown would be accepted now. It is judged again
  // when it has expired, else once a minute. A peer that has shown none yet is judged in its
  // handshake.
  bool is_believed_at(const AgentIdentity& us, std::int64_t now_unix_s) const;
  // Called after a stream's end. A connection that could not be made, or has broken, is dropped:
  // gRPC would otherwise redial each second, and fill the log of the far agent.
  void give_up_unless_connected();
  bool is_given_up() const { return channel_ == nullptr; }

 private:
  class Verifier;
  struct Verdict {
    std::mutex mutex;
    std::optional<Error> refusal;
    std::string chain;  // The chain of the last handshake.
    std::int64_t judged_at = 0;
    std::int64_t not_after = 0;  // End of the certificate that was accepted then.
    Result<CertificateIdentity> judge(const AgentIdentity& us, const std::string& name,
                                      std::int64_t now_unix_s);
  };
  const std::string name_;
  std::shared_ptr<Verdict> verdict_ = std::make_shared<Verdict>();
  std::shared_ptr<grpc::Channel> channel_;
};

class ForwardChannels {
 public:
  // More hosts than one user launches on at a time; each idle one costs about 30 KiB.
  static constexpr std::size_t kMaxChannels = 1024;
  static constexpr std::chrono::minutes kIdle{10};

  ForwardChannels(boost::asio::io_context& loop, Environment environment);

  // The kept channel of this target, or a new one. It stays kept while it is in use. Errors:
  // FailedPrecondition when this user has no agent.toml or its files will not do;
  // ResourceExhausted when kMaxChannels are all in use.
  Result<std::shared_ptr<ForwardChannel>> take(const std::string& target);
  std::size_t size() const { return channels_.size(); }
  void close();

 private:
  using Clock = std::chrono::steady_clock;
  struct Kept {
    std::shared_ptr<ForwardChannel> channel;
    Clock::time_point used;
  };
  Result<void> load_identity();
  void drop_idle(Clock::time_point used_before);
  void wait_for_a_minute();

  const Environment environment_;
  std::optional<AgentIdentity> us_;
  Clock::time_point loaded_{};
  std::map<std::string, Kept> channels_;
  boost::asio::steady_timer minute_;
};

}  // namespace ivy

// SPDX-License-Identifier: Apache-2.0
// The launcher's Unix socket in its directory (launcher_directory.h), for ivyctl. Answers one
// request per connection; a *follower* is a client that stays connected and gets messages, and
// perhaps output, until the job ends. Accepts this user and root only.
//
// Thread: the loop's. Lifetime: destroy it outside its requests.
#pragma once

#include <boost/asio/io_context.hpp>
#include <boost/asio/posix/stream_descriptor.hpp>
#include <boost/asio/steady_timer.hpp>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "launcher/job/control/launcher_directory.h"
#include "launcher/screen/output_events.h"
#include "proto/contract/status.h"
#include "proto/wire/ctl.pb.h"

namespace ivy {

// Answers the requests of a JobSocket. Implemented by CtlService, and by tests.
class CtlRequests {
 public:
  virtual ctl::JobDescription describe() = 0;
  virtual Result<void> signal(const ctl::SignalJob& signal) = 0;
  virtual Result<void> stop(const ctl::StopJob& stop) = 0;
  virtual Result<ctl::StoreDescription> describe_store() = 0;
  // Each of these calls done with the answer, immediately or later.
  using Text = std::function<void(const std::string& text)>;
  using Ranks = std::function<void(const ctl::RanksDescription& ranks)>;
  virtual void describe_operations(Text done) = 0;
  virtual void describe_stacks(const ctl::DescribeStacks& request, Text done) = 0;
  // The socket fills in `job` in the answer.
  virtual void describe_ranks(const ctl::DescribeRanks& request, Ranks done) = 0;

 protected:
  ~CtlRequests() = default;
};

class JobSocket final : public OutputFollower {
 public:
  // Limit of connections that are not followers; more wait in the listener's backlog.
  static constexpr std::size_t kMaxClients = 32;
  // Limit of followers. They do not take the slots of requests, so a job can be stopped however
  // many users follow it.
  static constexpr std::size_t kMaxFollowers = 128;
  // Limit of the messages that are kept while no client listens; the oldest are dropped.
  static constexpr std::size_t kUndeliveredBytesMax = 64u << 10;

  // Makes the directory and listens in it.
  static Result<std::unique_ptr<JobSocket>> open(boost::asio::io_context& loop,
                                                 const std::string& job_id, CtlRequests& requests);
  ~JobSocket();
  JobSocket(const JobSocket&) = delete;
  JobSocket& operator=(const JobSocket&) = delete;

  // Send the workers' output and ivyrun's messages to followers. Never wait.
  void output(int rank, int stream, std::string_view bytes, bool end) override;
  void message(std::string_view text) override;
  // From now on, keeps messages for the next follower if there is none, because the job has no
  // terminal.
  void keep_undelivered() { keeps_undelivered_ = true; }
  // Another attempt has begun: sends followers the new description of the job.
  void attempt();
  // The job has ended: removes the directory, sends the end to the clients that wait for it, and
  // calls done when they have it, or after kEndTimeout.
  void end(const ctl::JobEnd& end, std::function<void()> done);

  const LauncherDirectory& directory() const { return directory_; }
  // Leaves the directory to the next launcher of the job. It stays locked until this process exits.
  void release_directory() {
    directory_.lock.release();
    directory_ = LockedLauncherDirectory();
  }

 private:
  struct Client;
  using ClientPointer = std::shared_ptr<Client>;

  JobSocket(boost::asio::io_context& loop, LockedLauncherDirectory directory, int fd,
            CtlRequests& requests);
  std::size_t followers() const;
  void schedule_directory_check();
  void accept();
  void accept_pending();
  void read(const ClientPointer& client);
  void read_some(const ClientPointer& client);
  void answer(const ClientPointer& client, const ctl::Request& request);
  void follow(const ClientPointer& client, const ctl::Follow& wanted);
  void stop(const ClientPointer& client, const ctl::StopJob& wanted);
  void answer_later(const ClientPointer& client, const ctl::Request& request);
  void describe_to(const ClientPointer& client);
  void send_reply(const ClientPointer& client, const ctl::Reply& reply);
  void send_undelivered(const ClientPointer& client);
  void write(const ClientPointer& client);
  void close(const ClientPointer& client);
  void check_closed();

  boost::asio::io_context& loop_;
  LockedLauncherDirectory directory_;
  boost::asio::posix::stream_descriptor listener_;
  CtlRequests& requests_;
  std::vector<ClientPointer> clients_;
  bool keeps_undelivered_ = false;
  std::string undelivered_;
  bool is_accepting_ = false;
  boost::asio::steady_timer accept_timer_;
  boost::asio::steady_timer directory_timer_;
  boost::asio::steady_timer end_timer_;
  std::function<void()> on_ended_;
  std::shared_ptr<bool> alive_ = std::make_shared<bool>(true);
};

}  // namespace ivy

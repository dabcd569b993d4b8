// What ivyctl talks to: the launcher's Unix socket in the job's own 0700 directory (job_place.h).
// Answers one request per connection; a follower stays. Only our own user and root are heard.
//
// Thread: the loop's. Lifetime: destroy it outside its handlers.
#pragma once

#include <boost/asio/io_context.hpp>
#include <boost/asio/posix/stream_descriptor.hpp>
#include <boost/asio/steady_timer.hpp>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "launcher/job/job_place.h"
#include "proto/contract/status.h"
#include "proto/wire/ctl.pb.h"

namespace ivy {

class JobSocket {
 public:
  // Connections that have not been answered; more wait in the backlog.
  static constexpr std::size_t kMaxClients = 32;
  // Followers do not take the slots of requests, so that a job can be stopped however many people
  // watch it. One more is refused.
  static constexpr std::size_t kMaxFollowers = 128;
  // Limit of the messages kept while no client listens; the oldest are dropped.
  static constexpr std::size_t kUnheardBytesMax = 64u << 10;

  struct Handlers {
    std::function<ctl::JobDescription()> describe;
    std::function<Result<void>(int signal)> signal;
    std::function<Result<void>(const ctl::StopJob& stop)> stop;
    std::function<Result<ctl::StoreDescription>()> describe_store;
    // Calls done with the text, at once or later.
    std::function<void(std::function<void(const std::string& text)> done)> describe_operations;
    std::function<void(const ctl::DescribeStacks& request,
                       std::function<void(const std::string& text)> done)>
        describe_stacks;
    std::function<void(const ctl::DescribeRanks& request,
                       std::function<void(const ctl::RanksDescription&)> done)>
        describe_ranks;
  };

  // Makes the directory and listens in it.
  static Result<std::unique_ptr<JobSocket>> open(boost::asio::io_context& loop,
                                                 const std::string& job_id, Handlers handlers);
  ~JobSocket();
  JobSocket(const JobSocket&) = delete;
  JobSocket& operator=(const JobSocket&) = delete;

  // Sends what workers print and what ivyrun says to followers. Never waits.
  void output(int rank, int stream, std::string_view bytes, bool end);
  void message(std::string_view text);
  // Keeps messages without a follower for the next one, from now on: the job has no terminal.
  void keep_unheard() { keeps_unheard_ = true; }
  // Another attempt of the group has begun: sends followers the new description of the job.
  void attempt();
  // The job has ended: removes the directory, tells the clients that wait for the end, and calls
  // done when they have been told, at the latest after kEndPatience.
  void end(const ctl::JobEnd& end, std::function<void()> done);

  const JobPlace& place() const { return place_; }
  // Leaves the directory to the next launcher of the job when this one is destroyed.
  void keep_place() { place_ = JobPlace{}; }

 private:
  struct Client;
  using ClientPointer = std::shared_ptr<Client>;

  JobSocket(boost::asio::io_context& loop, JobPlace place, int fd, Handlers handlers);
  std::size_t followers() const;
  void keep_there();
  void accept();
  void accept_pending();
  void read(const ClientPointer& client);
  void read_some(const ClientPointer& client);
  void answer(const ClientPointer& client, const ctl::Request& request);
  void follow(const ClientPointer& client, const ctl::Follow& wanted);
  void stop(const ClientPointer& client, const ctl::StopJob& wanted);
  void answer_later(const ClientPointer& client, const ctl::Request& request);
  void describe_to(const ClientPointer& client);
  void say(const ClientPointer& client, const ctl::Reply& reply);
  void say_unheard(const ClientPointer& client);
  void write(const ClientPointer& client);
  void close(const ClientPointer& client);
  void check_over();

  boost::asio::io_context& loop_;
  JobPlace place_;
  boost::asio::posix::stream_descriptor listener_;
  Handlers handlers_;
  std::vector<ClientPointer> clients_;
  bool keeps_unheard_ = false;
  std::string unheard_;
  bool is_accepting_ = false;
  boost::asio::steady_timer accept_timer_;
  boost::asio::steady_timer place_timer_;
  boost::asio::steady_timer end_timer_;
  std::function<void()> over_;
  std::shared_ptr<bool> alive_ = std::make_shared<bool>(true);
};

}  // namespace ivy

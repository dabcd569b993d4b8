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
  // Connections at a time; more wait in the backlog.
  static constexpr std::size_t kMaxClients = 32;
  // Of messages that nobody has heard the newest are kept.
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
  };

  // Makes the directory and listens in it.
  static Result<std::unique_ptr<JobSocket>> open(boost::asio::io_context& loop,
                                                 const std::string& job_id, Handlers handlers);
  ~JobSocket();
  JobSocket(const JobSocket&) = delete;
  JobSocket& operator=(const JobSocket&) = delete;

  // What workers print and what ivyrun says, for whoever follows. Never waits.
  void output(int rank, int stream, std::string_view bytes, bool end);
  void message(std::string_view text);
  // From now on a message that nobody hears waits for who asks for it: the job has no terminal.
  void keep_unheard() { keeps_unheard_ = true; }
  // Another attempt of the group has begun: tells who follows what the job is now.
  void attempt();
  // The job has ended: removes the directory, tells whoever waits for it, and calls done when they
  // have been told, at the latest after kEndPatience.
  void end(const ctl::JobEnd& end, std::function<void()> done);

  const JobPlace& place() const { return place_; }
  // Leaves the directory to the next launcher of the job when this one is destroyed.
  void keep_place() { place_ = JobPlace{}; }

 private:
  struct Client;
  using ClientPointer = std::shared_ptr<Client>;

  JobSocket(boost::asio::io_context& loop, JobPlace place, int fd, Handlers handlers);
  void accept();
  void accept_pending();
  void read(const ClientPointer& client);
  void read_some(const ClientPointer& client);
  void answer(const ClientPointer& client, const ctl::Request& request);
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
  boost::asio::steady_timer end_timer_;
  std::function<void()> over_;
  std::shared_ptr<bool> alive_ = std::make_shared<bool>(true);
};

}  // namespace ivy

// A job that outlives its launcher: this launcher writes what the next one needs, and takes a job
// over whose launcher is dead.
//
//   record -> plan, files -> every host: Attach{takeover} -> TakenOver, then what has happened
//   meanwhile -> as if it had been the launcher all along
//
// A host that cannot be reached makes it give up and leave the job as it is; a host that has no
// supervisor any more is lost.
//
// Thread: the loop's. Lifetime: destroy it outside its handlers.
#pragma once

#include <boost/asio/steady_timer.hpp>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "launcher/job/ctl_service.h"
#include "launcher/job/job_context.h"
#include "launcher/job/restarts.h"

namespace ivy {

class Takeover {
 public:
  struct Handlers {
    // The plan is known again.
    std::function<void()> begin;
    // The output's files are open: dials the hosts.
    std::function<void()> dial;
    // What a host has said meanwhile.
    std::function<void(std::size_t index, const Event& event)> event;
    std::function<void(std::size_t index, HostLoss loss, const RemoteText& why)> host_lost;
    // The job is this launcher's.
    std::function<void()> taken;
    // This launcher ends, and the job goes on without it.
    std::function<void(int exit_code)> left;
  };
  Takeover(JobContext& job, CtlService& service, Restarts& restarts, Handlers handlers);

  // Writes the record, and says so when it cannot be written.
  void write_record();
  // Dates the record anew every few seconds: the hosts still hear a launcher.
  void keep_record();
  void stop_keeping() { record_timer_.cancel(); }

  // Takes over the job of the record; its plan stands in the context then.
  void begin();
  // Not all hosts have answered yet: events are deferred, as a verdict needs all of them.
  bool is_under_way() const { return !awaited_.empty(); }
  void host_taken_over(std::size_t index, const TakenOver& taken);
  void defer(std::size_t index, const Event& event);
  void host_failed(std::size_t index, const LinkDown& down);
  // A host that had answered a dial is lost before all of its events have come: no more are
  // awaited.
  void host_lost(std::size_t index, HostLoss loss, const RemoteText& why);
  // Ends this launcher before it has ordered anything: the hosts wait for another one.
  void give_up(const RemoteText& why);

 private:
  void restore_plan();
  void dial();
  void say_awaited();
  std::string awaited_text() const;
  Result<void> save_record();
  void host_answered(std::size_t index);
  void leave();

  JobContext& job_;
  CtlService& service_;
  Restarts& restarts_;
  Handlers handlers_;
  std::set<std::size_t> awaited_;                                // Hosts that have not answered.
  std::map<std::size_t, std::pair<HostLoss, RemoteText>> lost_;  // Reported once all have answered.
  std::vector<std::uint32_t> announced_;  // By host: events still to come after its TakenOver.
  // Hosts that the launcher before us did not get to tell of the restart.
  std::set<std::size_t> missed_start_;
  // By host, as it came: an event of many small parts takes hundreds of times its bytes when read.
  std::vector<std::pair<std::size_t, std::string>> deferred_;
  std::size_t deferred_bytes_ = 0;
  boost::asio::steady_timer record_timer_, patience_timer_, limit_timer_;
};

}  // namespace ivy

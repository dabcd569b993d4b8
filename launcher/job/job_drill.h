// SPDX-License-Identifier: Apache-2.0
// --drill: injects faults into this job and observes what becomes of them.
//
//   prepare()  before the first start: checks targets, and lets hosts check whether they can cause
//              their faults (`ivy-node drill`); prints the plan
//   tick()     from then on until stop(): injects the fault that is due once all ranks run, undoes
//              one of a rank, and notes when the job has recovered
//   table()    for the end of the job
//
// Verdicts arrive in JobContext::faults, which the parts that name failures fill in.
//
// Thread: the loop's. Lifetime: as long as the job.
#pragma once

#include <boost/asio/steady_timer.hpp>
#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "launcher/drill/drill_schedule.h"
#include "launcher/job/core/job_context.h"
#include "launcher/streams/sequence.h"
#include "proto/wire/drill.pb.h"
#include "proto/wire/stage_codec.h"

namespace ivy {

// Implemented by class Job.
class DrillActions {
 public:
  // Does what a notice from this host would.
  virtual void drill_notice(std::size_t host, const HostNotice& notice) = 0;

 protected:
  ~DrillActions() = default;
};

class JobDrill {
 public:
  JobDrill(JobContext& job, DrillActions& actions);

  // Returns false if it has rejected the job.
  Awaitable<bool> prepare(Sequence& steps);
  // Bytes of `ivy-node drill` on this host. The caller notifies the sequence of prepare().
  void take(std::size_t host, const TaskOutput& output);
  // The job ends: hosts undo their faults.
  void stop();
  // Returns the table for the summary, and writes its rows to --events; empty without faults.
  std::string table();

 private:
  // A host's answer to a check.
  struct Check {
    std::size_t host = 0;
    Fault fault = Fault::kCut;
    std::size_t rule = 0;
    bool has_answered = false;
    std::string why;
  };
  // A stopped rank that is to be continued.
  struct Continuation {
    std::int64_t at_ns = 0;
    std::uint32_t generation = 0;
    DrillTarget target;
    std::size_t number = 0;
  };

  DrillWorld world(bool only_running) const;
  void order_checks();
  bool reject(const Error& error, std::size_t rule);
  bool reject(const Check& check);
  void schedule_tick();
  void tick();
  bool may_inject() const;
  void inject(const DueFault& due, std::int64_t now_ns);
  void cause(const DrillRule& rule, const DrillTarget& target, const DrillWorld& world,
             InjectedFault& fault);
  void signal(const DrillTarget& target, const DrillWorld& world, int number);
  void send(std::size_t host, const DrillOrder& order);
  DrillOrder order_for(const DrillRule& rule, Fault fault, std::size_t host) const;
  void give_notice(const DrillRule& rule, Fault fault, std::size_t host);
  void continue_ranks(std::int64_t now_ns);
  void observe(InjectedFault& fault, std::int64_t now_ns) const;
  bool has_recovered(const InjectedFault& fault, std::int64_t now_ns) const;

  JobContext& job_;
  DrillActions& actions_;
  const std::vector<DrillRule>& rules_;
  DrillSchedule schedule_;
  boost::asio::steady_timer timer_;
  std::vector<Check> checks_;                            // The index is the number of their orders.
  std::map<std::size_t, stage::MessageSplitter> hosts_;  // With a drill task.
  std::vector<Continuation> stopped_;
};

}  // namespace ivy

// Finds jobs by their names and asks the launcher of one of them one question.
// Blocking, with deadlines. Thread: any, one at a time.
#pragma once

#include <chrono>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "launcher/job/ctl_wire.h"
#include "launcher/job/ended_jobs.h"
#include "launcher/job/job_place.h"
#include "launcher/options/option_types.h"
#include "proto/contract/status.h"
#include "proto/os/descriptor.h"
#include "proto/wire/ctl.pb.h"

namespace ivy {

// The job whose id begins so; empty: the only one. InvalidArgument lists the candidates; NotFound
// when there are none.
Result<FoundJob> choose_job(const std::string& prefix);
// The same, for verbs that need its launcher: FailedPrecondition when that is dead.
Result<FoundJob> choose_living_job(const std::string& prefix);
// Pure. The same among given jobs; `names`, by id, are for the message.
using JobNames = std::map<std::string, std::string>;
Result<FoundJob> choose_job(const std::string& prefix, const std::vector<FoundJob>& jobs,
                            const JobNames& names = {});

// The first digits of a job's id, as people use them.
std::string short_id(const std::string& job_id);

class CtlConnection {
 public:
  // Time for a living launcher to answer: it is one loop that never blocks.
  static constexpr std::chrono::milliseconds kPatience{5'000};

  // Connects and asks. Unavailable: the launcher does not answer.
  static Result<CtlConnection> ask(const JobPlace& place, const ctl::Request& request);

  // The next reply; Unavailable when the launcher is gone, DeadlineExceeded after the patience,
  // FailedPrecondition with its words when it refuses.
  Result<ctl::Reply> receive(std::chrono::milliseconds patience = kPatience);

  // For a loop: the descriptor, non-blocking, now the caller's; and what has been read already.
  int release() { return socket_.release(); }
  CtlDecoder& decoder() { return decoder_; }

 private:
  explicit CtlConnection(Descriptor socket) : socket_(std::move(socket)) {}
  Descriptor socket_;
  CtlDecoder decoder_{kMaxCtlReplyBytes};
};

// A reply of these bytes; FailedPrecondition when it is a refusal.
Result<ctl::Reply> parse_reply(const std::string& message);

// Asks a job's launcher one question and returns its answer.
Result<ctl::Reply> ask_once(const JobPlace& place, const ctl::Request& request,
                            std::chrono::milliseconds patience = CtlConnection::kPatience);
Result<ctl::JobDescription> describe_job(const JobPlace& place);

// NotFound: this job, of so many ranks, has none of those that are wanted.
Result<void> check_ranks(const ShowRanks& wanted, std::uint32_t world_size);

// "job 3f2a has ended: succeeded (exit code 0)"
std::string ended_text(const EndedJob& ended);

}  // namespace ivy

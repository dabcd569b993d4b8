// SPDX-License-Identifier: Apache-2.0
// Finds jobs by name and sends a request to the launcher of one of them. Blocking, with deadlines.
// Thread: any, one at a time.
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

// Returns the job whose id starts with `prefix`; empty: the only job. InvalidArgument lists the
// candidates; NotFound if there are none.
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

  // Connects and sends the request. Unavailable: the launcher does not answer.
  static Result<CtlConnection> ask(const JobPlace& place, const ctl::Request& request);

  // Returns the next reply; Unavailable if the launcher is gone, DeadlineExceeded after `patience`,
  // FailedPrecondition with its text if it rejects the request.
  Result<ctl::Reply> receive(std::chrono::milliseconds patience = kPatience);

  // For an event loop: the descriptor, non-blocking and owned by the caller, and the bytes already
  // read.
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

// NotFound: this job, of this size, has none of the requested ranks.
Result<void> check_ranks(const ShowRanks& wanted, std::uint32_t world_size);
// Adds the requested ranks to a request, none if all are. NotFound: the job has none of them.
Result<void> add_ranks(const ShowRanks& wanted, const JobPlace& place,
                       google::protobuf::RepeatedPtrField<ctl::RankRange>& ranges);

// "job 3f2a has ended: succeeded (exit code 0)"
std::string ended_text(const EndedJob& ended);

}  // namespace ivy

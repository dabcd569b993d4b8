// SPDX-License-Identifier: Apache-2.0
#include "launcher/job/control/record_keeper.h"

#include <chrono>

#include "launcher/job/control/job_record.h"
#include "proto/contract/build.h"
#include "proto/os/clock.h"

namespace ivy {
namespace {

constexpr std::chrono::seconds kRenewEvery{5};

}  // namespace

void JobRecordWriter::write() {
  if (service_.socket() == nullptr) return;
  const Result<void> written = save();
  if (!written.ok())
    job_.print("warning: this job will stop if its launcher exits: " + written.error().message);
}

Result<void> JobRecordWriter::save() {
  ctl::JobRecord record;
  record.set_build(std::string(build_name()));
  record.set_job_id(job_.request.identity.job_id);
  record.set_token(job_.request.identity.token);
  record.set_takeover(job_.takeover);
  record.set_generation(job_.generation);
  record_hosts(job_.options.hosts, record);
  record_plan(job_.plan, record);
  record.set_opened_unix_ms(job_.opened_unix_ms);
  record.set_started_unix_ms(wall_ms() - (monotonic_ns() - job_.job_started_at_ns) / 1'000'000);
  record.set_started_in(job_.request.started_in);
  record_options(job_.options, *record.mutable_options());
  return write_job_record(service_.socket()->directory(), record);
}

void JobRecordWriter::keep() {
  timer_.expires_after(kRenewEvery);
  timer_.async_wait([this](const boost::system::error_code& error) {
    if (error || service_.socket() == nullptr) return;
    renew_job_record(
        service_.socket()->directory(),
        *job_.options.lease + job_.options.shutdown_timeout.value_or(std::chrono::milliseconds(0)));
    keep();
  });
}

}  // namespace ivy

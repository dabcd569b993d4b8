# SPDX-License-Identifier: Apache-2.0
# ivyrun itself. Everything that can be static is, for a fast start.
add_library(ivy_job STATIC
  fetch/fetch_writer.cc hang/job_evidence.cc
  job/advice.cc job/bring_up.cc job/growth.cc job/health_gate.cc job/host_list_refresh.cc job/host_losses.cc
  job/host_notices.cc job/job.cc
  job/job_drill.cc job/job_ending.cc job/job_fetch.cc job/job_planner.cc job/progress_reader.cc job/restarts.cc job/staging.cc
  job/store_controller.cc
  job/takeover.cc
  job/control/ctl_service.cc job/control/follow_queue.cc job/control/job_socket.cc
  job/control/record_keeper.cc
  job/core/detach.cc job/core/job_context.cc job/core/job_reports.cc job/core/job_screen.cc
  job/hosts/host_links.cc job/hosts/host_session.cc job/hosts/job_hosts.cc
  job/ranks/mpi_world.cc job/ranks/preemption.cc job/ranks/rank_event_relay.cc
  job/ranks/rank_events.cc job/ranks/rank_losses.cc job/ranks/stdin_feed.cc
  plan/interpreter.cc stage/stage_scan.cc
  slurm/allocation_watch.cc slurm/drain_watch.cc slurm/slurm_command.cc)
target_link_libraries(ivy_job PUBLIC ivy_job_place ivy_launch_core ivy_links ivy_screen ivy_log ivy_stage_wire ivy_asio)
# An event that no case names would be ignored in silence.
target_compile_options(ivy_job PRIVATE -Werror=switch)

# ivy_join: torchrun mode, in which every node has an ivyrun of its own.
add_library(ivy_join STATIC
  join/join_key.cc join/join_wire.cc join/joined_node.cc join/joined_node_list.cc join/joiner.cc
  join/node_zero.cc)
target_link_libraries(ivy_join PUBLIC ivy_job PRIVATE OpenSSL::Crypto)

add_executable(ivyrun main.cc)
# ivy_node_core: it becomes the warden of its own host by a fork (links/warden_copy.h).
target_link_libraries(ivyrun PRIVATE ivy_join ivy_job ivy_agent_links ivy_node_core ivy_handshake)
target_link_options(ivyrun PRIVATE -static-libstdc++ -static-libgcc -Wl,--gc-sections)
if(NOT IVY_SANITIZE)
  # At a fixed address: thousands of relocations less at every start.
  set_target_properties(ivyrun PROPERTIES POSITION_INDEPENDENT_CODE OFF)
  target_link_options(ivyrun PRIVATE -no-pie)
endif()
ivy_for_older_glibc(ivyrun)
# An ivyrun without its bundle could start nothing elsewhere.
if(TARGET ivy_bundle)
  add_dependencies(ivyrun ivy_bundle)
endif()

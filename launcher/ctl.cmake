# SPDX-License-Identifier: Apache-2.0
# ivy_job_place: where a job is found and how it is spoken to, for ivyrun and ivyctl.
add_library(ivy_job_place STATIC
  hang/rank_names.cc
  job/control/ctl_wire.cc job/control/ended_jobs.cc job/control/job_record.cc
  job/control/launcher_directory.cc)
target_link_libraries(ivy_job_place PUBLIC ivy_contract ivy_proto ivy_launch_core ivy_options)

# ivyctl: talks to launchers on this host, and with `ps -H` to agents.
add_library(ivy_ctl STATIC
  ctl/ctl_agents.cc ctl/ctl_attach.cc ctl/ctl_config.cc ctl/ctl_connection.cc ctl/ctl_doctor.cc
  ctl/ctl_explain.cc ctl/ctl_follow.cc ctl/ctl_job_rows.cc ctl/ctl_launcher.cc ctl/ctl_logs.cc
  ctl/ctl_options.cc ctl/ctl_ps.cc ctl/ctl_ps_hosts.cc ctl/ctl_stack.cc ctl/ctl_status.cc
  ctl/ctl_signal.cc ctl/ctl_stop.cc ctl/ctl_stop_hosts.cc ctl/ctl_table.cc ctl/ctl_top.cc ctl/ctl_verbs.cc
  ctl/ctl_why.cc ctl/hosted_job.cc ctl/log_reader.cc)
target_link_libraries(ivy_ctl PUBLIC
  ivy_job_place ivy_launch_core ivy_agent_links ivy_screen ivy_store_client ivy_handshake ivy_asio)
target_include_directories(ivy_ctl SYSTEM PRIVATE ${IVY_CLI11_INCLUDE})
add_executable(ivyctl ctl/ctl_main.cc)
target_link_libraries(ivyctl PRIVATE ivy_ctl)
target_link_options(ivyctl PRIVATE -static-libstdc++ -static-libgcc -Wl,--gc-sections)
ivy_for_older_glibc(ivyctl)

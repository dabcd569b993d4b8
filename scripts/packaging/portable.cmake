# ivy_portable: what packages for every system hold in place of ivyrun-agents, ivyctl and ivy-agent, in portable/.
# One program with gRPC, OpenSSL and libarchive inside (launcher/one_file.cc), and call_beside, for packages without links.
# Not part of the default build: scripts/package asks for it.
set(IVY_PORTABLE ${CMAKE_BINARY_DIR}/portable)

# ivy_main_of(MAIN PROGRAM): an object with the program's main under another name.
function(ivy_main_of main program)
  set(object ${IVY_PORTABLE}/${main}.o)
  add_custom_command(OUTPUT ${object}
    COMMAND ${CMAKE_COMMAND} -E make_directory ${IVY_PORTABLE}
    COMMAND ${CMAKE_OBJCOPY} --redefine-sym main=${main} $<TARGET_OBJECTS:${program}> ${object}
    DEPENDS $<TARGET_OBJECTS:${program}> VERBATIM)
  set(${main}_object ${object} PARENT_SCOPE)
endfunction()
ivy_main_of(ivyrun_main ivyrun-agents)
ivy_main_of(ivyctl_main ivyctl)
ivy_main_of(ivy_agent_main ivy-agent)

# Agent and launcher are never linked together elsewhere, and may use one name for two things: all of the agent
# but its main becomes local to one object.
set(agent_object ${IVY_PORTABLE}/ivy_agent.o)
set(agent_archives)
foreach(library ivy_agent_core ivy_certificate_authority ivy_node_core ivy_devices ivy_agent_user ivy_agent_config
        ivy_certificate ivy_agent_proto ivy_proto ivy_handshake ivy_contract)
  list(APPEND agent_archives $<TARGET_FILE:${library}>)
endforeach()
add_custom_command(OUTPUT ${agent_object}
  COMMAND ld.bfd -r --force-group-allocation -o ${agent_object} ${ivy_agent_main_object} --start-group ${agent_archives} --end-group
  # Weak first: it does not make GNU's unique symbols local.
  COMMAND ${CMAKE_OBJCOPY} --weaken ${agent_object}
  COMMAND ${CMAKE_OBJCOPY} --keep-global-symbol=ivy_agent_main ${agent_object}
  DEPENDS ${ivy_agent_main_object} ${agent_archives} COMMAND_EXPAND_LISTS VERBATIM)

find_library(IVY_LIBARCHIVE_ARCHIVE NAMES libarchive.a)
if(IVY_LIBARCHIVE_ARCHIVE AND IVY_ZSTD_ARCHIVE)
  add_executable(ivy_one_file EXCLUDE_FROM_ALL launcher/one_file.cc ${agent_object}
    ${ivyrun_main_object} ${ivyctl_main_object})
  target_link_libraries(ivy_one_file PRIVATE ivy_options ivy_join ivy_job ivy_ctl ivy_agent_links
    protobuf::libprotobuf-lite ${IVY_LIBARCHIVE_ARCHIVE} ${IVY_ZSTD_ARCHIVE} ${IVY_ZLIB_ARCHIVE})
  target_link_options(ivy_one_file PRIVATE -static-libstdc++ -static-libgcc -Wl,--gc-sections -no-pie)
  set_target_properties(ivy_one_file PROPERTIES POSITION_INDEPENDENT_CODE OFF
    OUTPUT_NAME ivyrun-agents RUNTIME_OUTPUT_DIRECTORY ${IVY_PORTABLE})
  ivy_for_older_glibc(ivy_one_file)
  add_executable(call_beside EXCLUDE_FROM_ALL launcher/call_beside.c)
  target_link_options(call_beside PRIVATE -s)
  set_target_properties(call_beside PROPERTIES RUNTIME_OUTPUT_DIRECTORY ${IVY_PORTABLE})
  add_custom_target(ivy_portable DEPENDS ivy_one_file call_beside ivyrun ivycomm ivycomm_jax)
  if(TARGET ivycomm_calls)
    add_dependencies(ivy_portable ivycomm_calls)
  endif()
endif()

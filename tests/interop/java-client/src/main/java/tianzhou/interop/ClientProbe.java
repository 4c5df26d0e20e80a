package tianzhou.interop;

import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.io.PrintStream;
import java.nio.charset.StandardCharsets;
import java.util.Map;
import java.util.TreeMap;
import java.util.zip.CRC32;

import org.apache.rocketmq.common.message.MessageExt;

/**
 * RocketMQ's own clients, doing what standard input says, a line each:
 *
 * <pre>
 *   producer NAME    start one                      send NAME      send with it
 *   consumer NAME    start one that is pushed to    recall NAME    take back a timed message
 *   lite NAME        start one that polls           poll NAME      ask it for messages
 *   stop NAME        shut one down                  commit NAME    confirm what it got
 * </pre>
 *
 * Fields are separated by tabs; options follow as NAME=VALUE. Every command gets one line of JSON with
 * "answer" or "error"; lines with "event" may come at any time. The end of the input stops everything.
 * The only argument is the NameServer's address.
 */
public final class ClientProbe {
    private static final int BODY_SHOWN_MAX = 2000;

    final String nameserver;
    final Producers producers = new Producers(this);
    private final Consumers consumers = new Consumers(this);
    private final PrintStream out;

    private ClientProbe(PrintStream out, String nameserver) {
        this.out = out;
        this.nameserver = nameserver;
    }

    public static void main(String[] args) throws Exception {
        PrintStream out = new PrintStream(System.out, true, "UTF-8");
        System.setOut(System.err); // for loggers without a configuration
        ClientProbe probe = new ClientProbe(out, args[0]);
        BufferedReader in = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        for (String line = in.readLine(); line != null; line = in.readLine()) {
            try {
                probe.say(Json.map("answer", probe.obey(new Command(line))));
            } catch (Exception error) {
                error.printStackTrace();
                probe.say(Json.map("error", error.toString()));
            }
        }
        probe.consumers.stopAll();
        probe.producers.stopAll();
        System.exit(0); // some of its threads are no daemons
    }

    private Object obey(Command command) throws Exception {
        switch (command.verb) {
            case "producer":
                return producers.start(command);
            case "send":
                return producers.send(command);
            case "load":
                return producers.load(command);
            case "recall":
                return producers.recall(command);
            case "consumer":
                return consumers.start(command);
            case "lite":
                return consumers.startLite(command);
            case "pull":
                return consumers.pull(command);
            case "poll":
                return consumers.poll(command);
            case "commit":
                return consumers.commit(command);
            case "stop":
                return Json.map("stopped", producers.stop(command.name) | consumers.stop(command.name));
            default:
                throw new IllegalArgumentException(command.verb);
        }
    }

    /** One line, whichever thread it comes from. */
    void say(Map<String, Object> line) {
        String text = Json.write(line);
        synchronized (out) {
            out.println(text);
        }
    }

    static Map<String, Object> describe(MessageExt message) {
        byte[] body = message.getBody();
        String text = new String(body, StandardCharsets.UTF_8);
        CRC32 crc = new CRC32();
        crc.update(body);
        return Json.map("topic", message.getTopic(), "queueId", message.getQueueId(),
            "queueOffset", message.getQueueOffset(), "msgId", message.getMsgId(),
            "body", text.substring(0, Math.min(text.length(), BODY_SHOWN_MAX)), "bodySize", body.length,
            "bodyCrc", crc.getValue(), "storeSize", message.getStoreSize(), "sysFlag", message.getSysFlag(),
            "tags", message.getTags(), "keys", message.getKeys(),
            "reconsumeTimes", message.getReconsumeTimes(), "bornMs", message.getBornTimestamp(),
            "storedMs", message.getStoreTimestamp(), "seenMs", System.currentTimeMillis(),
            "properties", new TreeMap<>(message.getProperties()));
    }
}

"""Words of film reviews, those that blame and those that praise.

Ours, from what reviewers commonly say and from no data set; `dpexp.data.reviews` makes phrases of
them.
"""

from __future__ import annotations


def _phrases(text: str) -> list[str]:
    return [" ".join(phrase.split()) for phrase in text.split(";")]


# What a film or a part of it is.
BAD = """
    abrasive absurd aimless amateurish annoying arid artificial awful awkward bad banal bland
    bleak bloated bogus boring botched brainless butchered calculated chaotic cheap cheesy
    choppy cliched clumsy clunky cold confused confusing contrived corny crass creaky crude
    cynical dated dead deadly derivative desperate dim disappointing disjointed dismal dopey
    dreadful dreary dull dumb embarrassing empty erratic excessive excruciating exhausting
    exploitative fake false farcical feeble flat flawed flimsy foolish forced forgettable
    formulaic frustrating generic gimmicky glib gloomy graceless grating gratuitous gross
    hackneyed half-baked half-hearted haphazard heavy-handed hokey hollow horrible hysterical
    idiotic implausible inane incoherent indulgent inept inert inferior insipid insulting
    irritating joyless labored lackluster laughable lazy leaden lifeless limp listless loathsome
    long-winded loud lousy ludicrous lukewarm maudlin meandering mechanical mediocre messy
    mindless minor misguided monotonous moronic muddled murky nonsensical numbing obnoxious
    obvious offensive overblown overlong overwrought painful pale paper-thin pathetic plodding
    pointless ponderous poor preachy predictable preposterous pretentious puerile ragged
    rambling recycled redundant repetitive repulsive ridiculous sappy schmaltzy self-indulgent
    senseless sentimental shallow shapeless shoddy silly simplistic sketchy skimpy slack sleazy
    slight sloppy slow sluggish soggy soulless sour stale static stiff stilted strained stupid
    superficial tacky tasteless tedious tepid terrible thin tired tiresome toothless trashy
    trite turgid ugly unappealing unbearable unconvincing uneven unfocused unfunny unimaginative
    uninspired unintentional uninteresting uninvolving unnecessary unoriginal unpleasant
    unremarkable unsatisfying unwatchable useless vacant vapid vulgar wan weak weary witless
    wooden worthless wretched
""".split()
GOOD = """
    absorbing accomplished affecting amusing assured astonishing beautiful bold bracing
    breathtaking brilliant captivating charming clever compelling convincing crisp dazzling deft
    delicate delicious delightful earnest electric elegant enchanting endearing energetic
    engaging engrossing enjoyable entertaining enthralling evocative excellent exciting
    exhilarating exquisite extraordinary exuberant fascinating fine flawless fresh fun funny
    generous gentle genuine gorgeous graceful great gripping heartfelt heartwarming hilarious
    honest humane hypnotic imaginative impressive incisive infectious ingenious innovative
    insightful inspired inspiring intelligent intense intimate intriguing inventive irresistible
    joyful joyous kinetic likable lively lovely luminous lyrical magical magnetic magnificent
    masterful memorable mesmerizing moving nimble nuanced original outstanding passionate
    perceptive perfect playful pleasant pleasing poetic poignant polished powerful precise
    provocative radiant refreshing remarkable resonant rewarding rich riveting satisfying
    seductive sensitive sharp shrewd sincere skillful smart soulful sparkling spellbinding
    spirited splendid stirring striking strong stunning stylish sublime subtle superb surprising
    suspenseful sweet tender terrific thoughtful thrilling timely touching triumphant truthful
    unforgettable uplifting vibrant vivid warm watchable well-acted well-made winning wise witty
    wonderful wry
""".split()

# What it has.
FAULTS = """
    cliches tedium boredom stereotypes melodrama contrivance excess self-indulgence confusion
    nonsense mush sentimentality vulgarity mediocrity cynicism banality clutter pretension
    monotony schmaltz incoherence stupidity gimmicks platitudes
""".split()
MERITS = """
    charm wit warmth insight heart humor intelligence grace energy imagination emotion
    tenderness passion depth originality suspense wonder beauty humanity compassion style craft
    delight laughs thrills chemistry magic soul truth spirit sparkle verve subtlety nuance
    integrity freshness tension pleasure honesty feeling
""".split()

# What it is, as a whole.
FLOPS = _phrases("""
    a mess; a bore; a dud; a failure; a disaster; a disappointment; a waste of time; a chore; a
    snooze; a mistake; a misfire; a turkey; a letdown; a clunker; a slog; an ordeal; an
    embarrassment; a missed opportunity; a rip-off; a retread; a rehash; a train wreck; a waste
    of talent; a pale imitation; a long haul; junk; garbage; trash; drivel; a cheap knockoff; an
    endless parade of cliches; one of the year's worst films; one of the worst of the year; an
    insult; a grind; a headache; a bad joke; a third-rate sequel; a misguided remake; an
    exercise in tedium; hackwork; a failed experiment; a non-event
""")
HITS = _phrases("""
    a triumph; a delight; a gem; a treat; a pleasure; a joy; a winner; a masterpiece; a marvel;
    a revelation; a knockout; a tour de force; a classic; a breath of fresh air; a feast for the
    eyes; a crowd-pleaser; a wild ride; a work of art; a rare treat; an achievement; an
    eye-opener; a rousing success; a smart thriller; a fine piece of filmmaking; a labor of
    love; a thinking person's entertainment; one of the year's best films; one of the best of
    the year; a must-see; a success on every level; a film to treasure; a first-rate drama; a
    top-notch comedy
""")

# What it does.
FAILS = _phrases("""
    falls flat; falls apart; goes nowhere; wastes its cast; runs out of steam; drags on; fails
    to engage; fails to move; fails to amuse; never comes to life; never gets off the ground;
    never adds up; misses the mark; is hard to sit through; is a waste of two hours; put me to
    sleep; tries too hard; makes no sense; makes little sense; left me cold; bored me; loses its
    way; overstays its welcome; collapses under its own weight; has nothing to say; has no
    heart; has no point; lacks a story; isn't worth the price of a ticket; isn't worth your
    time; is not funny; isn't funny; is too long; is too slow; is dead on arrival; is going
    nowhere; insults the audience; is painful to watch; wears thin; wears out its welcome;
    sinks; stumbles; plods along; is all surface; is as dull as it sounds; should have gone
    straight to video; should have stayed on the shelf; will make you want to leave; leaves you
    checking your watch; deserves to be forgotten; forgets to be funny; has been done before;
    has been done better; we have seen it all before; adds nothing new; offers nothing new;
    settles for easy answers; never rises above its material; gets bogged down; squanders its
    premise; lost me; could have been better; could use more laughs; would have worked better as
    a short; ends up empty; disappoints; is beyond help; feels like homework; feels endless;
    feels like a television pilot
""")
WORKS = _phrases("""
    works beautifully; soars; succeeds on every level; delivers the goods; will move you;
    touches the heart; stays with you; holds your attention; keeps you on the edge of your seat;
    earns its laughs; earns its tears; rings true; never loses its way; packs a punch; is worth
    seeing; is well worth your time; is a pleasure to watch; makes you think; makes you care;
    wins you over; grabs you and never lets go; finds the humor in the everyday; gets everything
    right; draws you in; is hard to resist; lingers in the mind; surprises at every turn; has
    something to say; has real heart; has plenty of laughs; leaves you smiling; leaves you
    wanting more; will have audiences cheering; deserves to be seen; does justice to its
    subject; gets under your skin; hits the mark; pays off; brings the story to life; comes
    alive; is as good as it gets; has a lot going for it; captures the pain of growing up; is
    not to be missed; restores your faith in movies; transcends its genre; treats its characters
    with respect; moves at a brisk pace; is never less than entertaining; avoids the usual
    cliches; breaks your heart; takes your breath away
""")

# What is said without a subject.
PANS = _phrases("""
    avoid it; skip it; stay home; don't bother; save your money; wait for the video; you can do
    better; a big zero; no fun; not much fun; no laughs; few laughs; not very good; not very
    funny; not nearly enough; not enough; too little too late; too much of too little; too long
    and too loud; too bad; not scary; neither funny nor moving; less than the sum of its parts;
    little more than a commercial; nothing more than a gimmick; nothing to see here; by the
    numbers; by-the-numbers; a one-joke movie; second-rate; third-rate; ill-conceived;
    ill-advised; poorly acted; badly written; badly edited; poorly paced; clumsily staged;
    crudely made; thinly written; painfully slow; painfully unfunny; hopelessly dated; deadly
    dull; utterly pointless; dead weight; dead in the water; sorely lacking; without a clue;
    without a point; without charm; without laughs; no apparent reason; at the expense of the
    story; a lot of noise; all flash and no substance; style over substance; more tiring than
    anything; more annoying than funny; the worst kind of hollywood; hollywood at its worst; an
    excuse for a movie; nobody will care; who cares; why was this made; what were they thinking;
    it's a shame; sadly; unfortunately; to no avail; instead of a story; cardboard characters;
    stock characters; lame jokes; bad jokes; bad dialogue; a bad script; cheap shots; cheap
    effects; plot holes; big holes; toilet humor; a wasted cast; a paint-by-numbers script;
    gross-out gags; a video game; a bad soap opera; a bad sitcom; a music video
""")
RAVES = _phrases("""
    go see it; do yourself a favor and see it; highly recommended; you will laugh out loud;
    laugh-out-loud funny; two thumbs up; pure pleasure; pure joy; a good time; good fun; great
    fun; feel-good; at its best; in top form; at the top of his game; first-rate; top-notch;
    edge-of-your-seat; a cut above; better than expected; better than you might expect; better
    than its predecessor; surprisingly good; never dull; never boring; never less than
    fascinating; anything but dull; far from boring; without a false note; without cliches;
    without sentimentality; not a wasted moment; no small achievement; nothing short of
    wonderful; a lot of fun; worth a look; worth the wait; worth every minute; full of life;
    full of surprises; easy to like; easy to love; hard not to like; impossible to resist; it's
    a keeper; impeccable; with great sympathy; deeply felt; beautifully shot; superbly acted;
    finely written; well told; smartly written; richly detailed; lovingly made; quietly
    powerful; darkly funny; wickedly funny; genuinely scary; oddly moving; visually stunning; an
    oscar-worthy performance; a star-making performance; the best performance of her career;
    solid entertainment; great company
""")

KINDS = "film movie comedy drama thriller romance documentary story picture sequel remake".split()
KINDS += "adventure fable satire mystery tale piece script".split()
PARTS = _phrases("""
    script; screenplay; direction; dialogue; plot; story; acting; cast; performance; performances;
    characters; ending; pacing; humor; premise; action; camerawork; cinematography; score;
    soundtrack; editing; visuals; special effects; jokes; romance; first half; second half; lead;
    leading man; leading lady; director; material; tone; storytelling; concept; production;
    chemistry; execution; animation; narrative
""")
MANY = "performances dialogue direction characters moments storytelling humor scenes".split()
MANY += "imagery filmmaking ideas".split()
SUBJECTS = _phrases("""
    it; the film; the movie; this film; this movie; the picture; this one; the whole thing;
    this comedy; this drama; the result
""")
ASIDES = _phrases("""
    about growing up; about love and loss; about a family in crisis; about war; set in new york;
    set in france; for adults; for the whole family; for children; of a young man; of a marriage;
    of two friends; from a first-time director; in the tradition of the western;
    that follows a detective; that tells a true story; at two hours; on screen; in the end;
    this time around; from start to finish; in recent memory; of the season; by the book;
    in every scene; about an artist and his muse; in a small town; with subtitles;
    about the human condition; of its kind; in years
""")
DEGREES = "very really truly so quite thoroughly utterly deeply completely genuinely".split()
DEGREES += "remarkably surprisingly consistently often simply just pretty rather incredibly".split()
NEGATORS = _phrases("""
    not; never; hardly; isn't; n't; not exactly; not particularly; far from; anything but;
    less than; not at all
""")
WITH = _phrases("""
    full of; filled with; with; bursting with; loaded with; packed with; has; offers; rich in;
    plenty of; so much; a lot of
""")
WITHOUT = _phrases("""
    lacks; lacking; lacks any; without; has no; devoid of; short on; with little; not enough;
    could use more; bereft of any; drained of
""")
SPARED = _phrases("""
    free of; avoids; without a trace of; never gives in to; spares us the; steers clear of
""")
